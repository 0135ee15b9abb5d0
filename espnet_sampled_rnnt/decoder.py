"""``decoder: sampled_transducer``: a prediction network with its joint network.

ESPnet builds a joint network only for the decoder that is literally named
``transducer``, and sizes it from the encoder even where a postencoder changes the
width. This decoder is told the right width and brings its own.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from espnet2.asr.decoder.transducer_decoder import TransducerDecoder
from espnet2.asr_transducer.joint_network import JointNetwork
from typeguard import typechecked

# Hidden states as ESPnet's beam searches pass them round: (N, B, D) each.
State = tuple[torch.Tensor, torch.Tensor | None]

RNN_TYPES = ("lstm", "gru", "stateless")


class SampledTransducerDecoder(TransducerDecoder):
    """Prediction network of a transducer, LSTM, GRU or stateless.

    The recurrent ones are ESPnet's own, under ESPnet's parameter names. The
    stateless one (M. Ghodsi et al., "RNN-Transducer with stateless prediction
    network", ICASSP 2020) sees the last ``context_size`` labels only: an embedding,
    a causal convolution over it and a ReLU.

    Args:
        vocab_size: V, blank included.
        encoder_output_size: Width of what reaches the joint network.
        rnn_type: "lstm", "gru" or "stateless".
        num_layers: Recurrent layers; the stateless network has none and ignores it.
        hidden_size: Width of the embedding and of the output.
        dropout: Dropout rate after each layer.
        dropout_embed: Dropout rate after the embedding.
        embed_pad: The id whose embedding stays zero; blank.
        context_size: Labels that the stateless network sees, >= 1.
        joint_net_conf: Options of ESPnet's ``JointNetwork``: ``joint_space_size``,
            ``joint_activation_type`` and what that activation takes.

    Raises:
        ValueError: An unknown ``rnn_type``, or a number out of its range, by name.
    """

    @typechecked
    def __init__(
        self,
        vocab_size: int,
        encoder_output_size: int,
        rnn_type: str = "lstm",
        num_layers: int = 1,
        hidden_size: int = 320,
        dropout: float = 0.0,
        dropout_embed: float = 0.0,
        embed_pad: int = 0,
        context_size: int = 2,
        joint_net_conf: dict[str, Any] | None = None,
    ) -> None:
        if rnn_type not in RNN_TYPES:
            raise ValueError(
                f"decoder_conf.rnn_type is {rnn_type!r}; allowed: "
                f"{', '.join(RNN_TYPES)}"
            )
        if vocab_size < 1:
            raise ValueError("the token list is empty; allowed: at least blank")
        if context_size < 1:
            raise ValueError(
                f"decoder_conf.context_size is {context_size}; allowed: a whole "
                "number >= 1"
            )
        is_stateless = rnn_type == "stateless"
        for name, value, allowed, right in (
            ("num_layers", num_layers, "a whole number >= 1", num_layers >= 1),
            ("hidden_size", hidden_size, "a whole number >= 1", hidden_size >= 1),
            ("dropout", dropout, "a number from 0 to 1", 0 <= dropout <= 1),
            (
                "dropout_embed",
                dropout_embed,
                "a number from 0 to 1",
                0 <= dropout_embed <= 1,
            ),
            (
                "embed_pad",
                embed_pad,
                f"a token id from 0 to {vocab_size - 1}",
                0 <= embed_pad < vocab_size,
            ),
        ):
            if not right:
                raise ValueError(f"decoder_conf.{name} is {value}; allowed: {allowed}")
        super().__init__(
            vocab_size,
            # ESPnet's class knows two types. Its state for "gru" is one tensor, as
            # ours is, and with no layers no GRU is made.
            rnn_type="gru" if is_stateless else rnn_type,
            num_layers=0 if is_stateless else num_layers,
            hidden_size=hidden_size,
            dropout=dropout,
            dropout_embed=dropout_embed,
            embed_pad=embed_pad,
        )
        self.is_stateless = is_stateless
        if is_stateless:
            self.context = torch.nn.Conv1d(hidden_size, hidden_size, context_size)
            self.context_dropout = torch.nn.Dropout(p=dropout)
            # The state is a window of embeddings, (context_size - 1, B, D): its
            # first axis stands where the searches expect the layers, so selecting
            # and batching states is inherited as it is.
            self.dlayers = context_size - 1
        self.joint_network: JointNetwork | None = JointNetwork(
            vocab_size, encoder_output_size, hidden_size, **(joint_net_conf or {})
        )

    def release_joint_network(self) -> JointNetwork:
        """Hand the joint network over to the model, once.

        It then has the name that it has in ESPnet's transducer, ``joint_network.*``,
        and is not saved a second time under the decoder.

        Raises:
            RuntimeError: It was handed over already.
        """
        joint_network = self.joint_network
        if joint_network is None:
            raise RuntimeError(
                "the joint network of this decoder belongs to another model already"
            )
        self.joint_network = None
        return joint_network

    def forward(self, labels: torch.Tensor, *unexpected: object) -> torch.Tensor:
        """Run the prediction network over label sequences.

        Args:
            labels: (B, L) int64, blank first.
            unexpected: What ESPnet's attention branch passes.

        Returns:
            (B, L, D) prediction network output.

        Raises:
            RuntimeError: It was called as an attention decoder.
        """
        if unexpected:
            _refuse_attention()
        return super().forward(labels)

    def rnn_forward(
        self, sequence: torch.Tensor, state: State
    ) -> tuple[torch.Tensor, State]:
        """Advance the network over embedded labels.

        Args:
            sequence: (B, L, D) embedded labels.
            state: The state before them; for the stateless network the embeddings
                of the ``context_size - 1`` labels before, (context_size - 1, B, D),
                zeros before the first, and None.

        Returns:
            (B, L, D) output, and the state after the last label.
        """
        if not self.is_stateless:
            return super().rnn_forward(sequence, state)
        window = torch.cat((state[0].transpose(0, 1).to(sequence), sequence), dim=1)
        output = torch.relu(self.context(window.transpose(1, 2))).transpose(1, 2)
        last = window[:, sequence.size(1) :].transpose(0, 1)
        return self.context_dropout(output), (last, None)


def _refuse_attention() -> NoReturn:
    raise RuntimeError(
        "decoder: sampled_transducer was called as an attention decoder. It belongs "
        "to model: sampled_transducer; set `model: sampled_transducer` in the YAML "
        "(ESPnet's default is `model: espnet`)"
    )
