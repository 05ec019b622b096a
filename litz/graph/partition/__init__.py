"""Splitting the joint graph: what the forward computes and saves, and what the backward does again."""
