"""Rewriting graphs: an fx graph in, a better one out."""
