"""The text that the laboratory reads where a person gives none."""

from __future__ import annotations

PASSAGE = """\
A farthing was a quarter of a penny. It bought a bun, a box of matches or a place by the fire, and
people who had few of them counted each one twice. The habit is a good one. A machine that adds the
same numbers in another order may find another sum, since every addition rounds; most programs shrug
at that, and so a text changes when a neighbour arrives, when a longer prompt is cut in pieces, or
when a thread is added. Here the order is fixed instead, and what follows is the proof of it. The
same words are read whole and in pieces, alone and in company, remembered and read anew. If a single
bit of a single number came out different, somebody would have to explain why. On the twelfth of
March 1871 the keeper wrote: wind south-west, light steady, nothing to report. He had written so on
ninety-seven days out of a hundred. On the others he wrote what had gone wrong, and because of that
his book was believed.
"""
