"""Sentences of frequent Mandarin words, and their split into sets."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from itertools import accumulate

HAN_WORD = re.compile(r"[\u4e00-\u9fff]{1,4}")


def choose_words(
    candidates: Iterable[str], num_characters: int, sound: Callable[[str], str]
) -> list[str]:
    """The most frequent words that together have enough characters.

    A word that sounds like a more frequent one is left out: nobody, and no model,
    could tell which of the two was spoken in a sentence without meaning.

    Args:
        candidates: words in falling order of frequency; what is not one to four
            Chinese characters is passed over.
        num_characters: how many different characters are wanted.
        sound: a word's pronunciation, tones included.

    Raises:
        ValueError: the candidates have too few characters.
    """
    words, characters, sounds = [], set(), set()
    for word in candidates:
        if not HAN_WORD.fullmatch(word) or (spoken := sound(word)) in sounds:
            continue
        sounds.add(spoken)
        words.append(word)
        characters.update(word)
        if len(characters) >= num_characters:
            return words
    raise ValueError(
        f"num_characters is {num_characters}; the word list has {len(characters)}"
    )


def make_sentences(
    words: list[str],
    num_sentences: int,
    length: tuple[int, int],
    generator: random.Random,
    flatness: float = 0.5,
) -> list[list[str]]:
    """Different random sentences; every word of the list occurs in the first ones.

    Words are drawn with probability proportional to rank ** -flatness: natural
    frequencies (a flatness near 1) would leave the rare characters almost unseen in
    a corpus this small.

    Args:
        words: in falling order of frequency.
        num_sentences: how many.
        length: least and largest number of characters of a sentence.
        generator: all randomness.
        flatness: see above.

    Raises:
        ValueError: there are not that many, or the words do not all fit in.
    """
    low, high = length
    cumulative = list(accumulate(rank**-flatness for rank in range(1, len(words) + 1)))
    pending = list(words)
    generator.shuffle(pending)
    sentences: list[list[str]] = []
    seen: set[str] = set()
    for _ in range(100 * num_sentences):
        if len(sentences) == num_sentences:
            break
        sentence: list[str] = []
        wanted, size = generator.randint(low, high), 0
        if pending and len(pending[-1]) <= wanted:
            sentence.append(pending.pop())
            size = len(sentence[0])
        while size < wanted:
            word = generator.choices(words, cum_weights=cumulative)[0]
            if size + len(word) <= high:
                sentence.append(word)
                size += len(word)
        generator.shuffle(sentence)
        text = "".join(sentence)
        if text not in seen:
            seen.add(text)
            sentences.append(sentence)
    if len(sentences) < num_sentences or pending:
        raise ValueError(
            f"{num_sentences} sentences of {low} to {high} characters: "
            f"{len(sentences)} found, {len(pending)} of {len(words)} words left over"
        )
    return sentences


def split_sentences(
    sentences: list[list[str]], sizes: dict[str, int]
) -> dict[str, list[list[str]]]:
    """Consecutive parts; the first gets the sentences that hold every word.

    Raises:
        ValueError: the sizes do not add up to the number of sentences.
    """
    if sum(sizes.values()) != len(sentences):
        raise ValueError(f"sizes {sizes} of {len(sentences)} sentences")
    parts, start = {}, 0
    for name, size in sizes.items():
        parts[name] = sentences[start : start + size]
        start += size
    return parts
