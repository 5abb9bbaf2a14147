"""Speculative decoding on plain CPUs with PyTorch: a fused loop for small models."""
