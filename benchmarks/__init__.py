"""Time and memory of the transducer loss beside other ways to compute it.

``python -m benchmarks.loss`` measures and writes JSON rows, ``python -m
benchmarks.report`` draws tables and plots from them, ``python -m
benchmarks.launches`` counts the kernels and waits of a step, ``benchmarks/gpu.sh``
does all of it on a CUDA device. What is measured and how to read it is in
``docs/performance.md``.

Symbols: B utterances, T frames, U labels, V vocabulary, J joint width, S sampled
negatives, K tokens of a softmax, N valid lattice nodes, sum of T_b (U_b + 1).
"""
