"""Recombine together with other libraries. Each file needs an extra and is imported only by those who use it."""
