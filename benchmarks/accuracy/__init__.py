"""Does sampling cost accuracy? Trainings side by side, through ESPnet's own asr.sh.

``python -m benchmarks.accuracy run`` trains what is missing and writes one JSON row a
run, ``python -m benchmarks.accuracy report`` draws tables and plots from the rows.
What was compared and how to read it is in ``docs/accuracy.md``.
"""
