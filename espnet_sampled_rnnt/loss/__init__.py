"""The transducer loss in little memory: exact or with a sampled softmax."""

from espnet_sampled_rnnt.loss.transducer import transducer_loss

__all__ = ["transducer_loss"]
