"""The page that explains: what became of a model, as data, and as one HTML file.

`explain.py` is the way in; `gather.py` looks on while Litz compiles, and makes an `Explanation` (`explanation.py`) of
what it saw; `page.py` makes HTML of that.
"""
