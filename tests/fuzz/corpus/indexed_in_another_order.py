"""What is indexed lies as its indices do, in another order of dimensions than the fakes say; and a diagonal that is
empty whatever the sizes."""

from tests.fuzz.numbers import numbers

CASES = [(1, 2), (17, 3), (6, 4)]


def inputs(n, k):
    rows = numbers("float64", (n, 3, 1), 67)
    places = numbers("int64", (n, k, 2), 38).transpose(0, 2)
    square = numbers("float32", (k, 1, k), 30)
    return [rows, places, square, k]


def program(rows, places, square, k):
    never = square.diagonal(1, -3, 1)
    never[1:] = 1.0
    return [rows[places % rows.shape[0]], rows.expand(-1, 3, k)[:, places.abs() % 3], square]
