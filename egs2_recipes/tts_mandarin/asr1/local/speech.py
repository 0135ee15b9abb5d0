"""Speech by espeak-ng's library, which the package espeakng-loader carries."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

_SYNCHRONOUS = 2  # espeak_AUDIO_OUTPUT: hand samples to the callback before returning
_UTF8 = 1
_RATE, _PITCH = 1, 3  # espeak_PARAMETER
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


@dataclass(frozen=True)
class Speaker:
    """A way of speaking.

    Attributes:
        name: for utt2spk.
        voice: of espeak-ng, e.g. ``cmn+f2``.
        rate: words a minute, 80 to 450.
        pitch: 0 to 99.
    """

    name: str
    voice: str
    rate: int
    pitch: int


def make_speakers() -> list[Speaker]:
    """28 ways of speaking: 14 voices, each slow and low, and quick and high."""
    variants = ["", *(f"+f{n}" for n in range(1, 6)), *(f"+m{n}" for n in range(1, 9))]
    speakers = []
    for index, variant in enumerate(variants):
        for fast in (0, 1):
            rate = 150 + 45 * fast + 3 * (index % 7)
            pitch = 35 + 22 * fast + 2 * (index % 5)
            name = f"s{2 * index + fast:02d}"
            speakers.append(Speaker(name, f"cmn{variant}", rate, pitch))
    return speakers


class Synthesizer:
    """espeak-ng in this process.

    The library keeps state between utterances (its breath noise goes on), so only
    the whole sequence of calls on a fresh object in a fresh process is reproducible.

    Args:
        seed: of the library's own noise.

    Raises:
        RuntimeError: the package is missing or its library does not start.
    """

    def __init__(self, seed: int) -> None:
        try:
            import espeakng_loader
        except ImportError as error:
            raise RuntimeError(
                "espeakng-loader is not installed; pip install "
                "'espnet-sampled-rnnt[study]' brings it"
            ) from error
        self._library = library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = str(espeakng_loader.get_data_path()).encode()
        self.sample_rate: int = library.espeak_Initialize(_SYNCHRONOUS, 0, data, 0)
        if self.sample_rate <= 0:
            raise RuntimeError(f"espeak-ng did not start with its data in {data!r}")
        library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        library.espeak_ng_SetRandSeed(ctypes.c_long(seed))
        self._pieces: list[bytes] = []
        self._callback = _CALLBACK(self._receive)  # must live as long as the library
        library.espeak_SetSynthCallback(self._callback)
        self._set_voice("cmn")

    def _receive(self, samples, count: int, _events) -> int:
        if samples and count > 0:
            self._pieces.append(ctypes.string_at(samples, 2 * count))
        return 0

    def _set_voice(self, voice: str) -> None:
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise RuntimeError(f"espeak-ng has no voice {voice}")

    def speak(self, text: str, speaker: Speaker) -> np.ndarray:
        """(n,) float64 samples in [-1, 1] at ``sample_rate``."""
        self._set_voice(speaker.voice)
        self._library.espeak_SetParameter(_RATE, speaker.rate, 0)
        self._library.espeak_SetParameter(_PITCH, speaker.pitch, 0)
        self._pieces.clear()
        encoded = text.encode() + b"\0"
        size = ctypes.c_size_t(len(encoded))
        failed = self._library.espeak_Synth(encoded, size, 0, 0, 0, _UTF8, None, None)
        if failed or not self._pieces:
            raise RuntimeError(f"espeak-ng could not say {text!r} (code {failed})")
        samples = np.frombuffer(b"".join(self._pieces), dtype=np.int16)
        return samples / 32768.0

    def pronunciation(self, text: str) -> str:
        """Phonemes with tones."""
        pointer = ctypes.c_char_p(text.encode())
        parts = []
        while pointer.value:
            spoken = self._library.espeak_TextToPhonemes(
                ctypes.byref(pointer), _UTF8, 0
            )
            parts.append(spoken.decode())
        return " ".join(parts)


def add_noise(
    speech: np.ndarray, snr_db: float, generator: np.random.RandomState
) -> np.ndarray:
    """Speech with noise whose power falls with frequency, as that of rooms does.

    Args:
        speech: (n,) float.
        snr_db: ratio of the powers of speech and noise, decibels.
        generator: the legacy kind, whose stream numpy has frozen for good.
    """
    white = generator.standard_normal(len(speech))
    noise = np.convolve(white, 0.8 ** np.arange(16))[: len(speech)]
    power = np.mean(speech**2) / 10 ** (snr_db / 10)
    return speech + noise * np.sqrt(power / np.mean(noise**2))
