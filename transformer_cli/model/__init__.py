"""Section 3 of "Attention Is All You Need" (Vaswani et al. 2017), readable beside the paper."""
