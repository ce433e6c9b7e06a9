"""Journals on a replicated log: what is asked of it, what its entries mean, and who may append.

`engine` is the contract of a replicated log. `entry` and `fold` say what the entries mean, the same way for every
reader. What the frames in them mean is not known here.
"""
