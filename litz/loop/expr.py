"""Index expressions: integer polynomials over axes, sizes, loaded values, floor-divisions and remainders.

In: Python ints and atoms. Out: interned, immutable `Expr` values in one normal form, so that two
equal indices are the same object wherever the rules below can prove it.

The one idea: an expression is a sum of `coefficient x product of atoms`, and `//` and `%` simplify
themselves on construction from the known range of every axis. Reshapes then cancel out on their own:
`768*(j//768) + j%768` is `j`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import gcd
from typing import Any, ClassVar, Union, cast
from weakref import WeakValueDictionary

from litz.loop.formula import Formula, Measures
from litz.loop.remember import remembered


class NotConstant(ValueError):
    """A number was asked of an expression that has sizes in it."""


class Atom:
    """What cannot be taken apart: an `Axis`, a `Size`, a `Value`, a `FloorDiv` or a `Mod`."""

    __slots__ = ("_hash", "key")
    key: tuple
    _hash: int

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        # Asked without a global name: interned expressions are also let go while the interpreter ends.
        return self is other or self.key == getattr(other, "key", None)

    def __lt__(self, other: Atom) -> bool:
        return _order(self) < _order(other)

    def __reduce__(self):
        # Built anew, not copied: a hash of strings holds in one process only.
        return (type(self), self.key[1:])


class Axis(Atom):
    """A loop variable running over `0 <= axis < size`."""

    __slots__ = ("name", "size")

    def __init__(self, name: str, size: ExprLike):
        self.name, self.size = name, expr(size)
        self.key = ("axis", name, self.size)
        self._hash = hash(self.key)

    def __repr__(self) -> str:
        return self.name


class Size(Atom):
    """A whole number known only when the program is called: a size, or an argument that is a number.

    `hint` is a likely value, for choices that any value leaves right, and `least` a bound that every value keeps (None:
    there is none). Both are part of what the size is: the code made for one program must not depend on what another,
    compiled before, knew about a size of the same name. `formula`: how the host computes it from other sizes.
    """

    __slots__ = ("formula", "hint", "least", "name")

    def __init__(self, name: str, hint: int = 64, least: int | None = 1, formula: Formula | None = None):
        self.name, self.hint, self.least, self.formula = name, hint, least, formula
        self.key = ("size", name, hint, least, formula)
        self._hash = hash(self.key)

    def at(self, sizes: Measures) -> int:
        return cast(int, sizes[self.name] if self.formula is None else self.formula.at(sizes))

    def __repr__(self) -> str:
        return self.name


class Value(Atom):
    """An integer computed in the kernel's body (an indirect index), named like the body's value.

    A body guarantees by a `Check` that it lies in `0 <= value < limit` when `limit` is given.
    """

    __slots__ = ("name", "limit")

    def __init__(self, name: str, limit: ExprLike | None = None):
        self.name = name
        self.limit = None if limit is None else expr(limit)
        self.key = ("value", name, self.limit)
        self._hash = hash(self.key)

    def __repr__(self) -> str:
        return self.name


class FloorDiv(Atom):
    __slots__ = ("num", "den")

    def __init__(self, num: Expr, den: Expr):
        self.num, self.den = num, den
        self.key = ("div", num, den)
        self._hash = hash(self.key)

    def __repr__(self) -> str:
        return f"{_operand(self.num)}//{_operand(self.den)}"


class Mod(Atom):
    __slots__ = ("num", "den")

    def __init__(self, num: Expr, den: Expr):
        self.num, self.den = num, den
        self.key = ("mod", num, den)
        self._hash = hash(self.key)

    def __repr__(self) -> str:
        return f"{_operand(self.num)}%{_operand(self.den)}"


Monomial = tuple[Atom, ...]
Terms = tuple[tuple[Monomial, int], ...]
Integer = int  # `Expr` has a property of that name
Bounds = tuple[Union[int, None], Union[int, None]]
ExprLike = Union["Expr", Atom, int]

_RANK = {"size": 0, "axis": 1, "value": 2, "div": 3, "mod": 4}


def _order(atom: Atom) -> tuple:
    return (_RANK[atom.key[0]], repr(atom))


class Expr:
    """A polynomial: `terms` maps each product of atoms (sorted) to its non-zero coefficient."""

    __slots__ = ("terms", "_hash", "_bounds", "__weakref__")
    _interned: ClassVar[WeakValueDictionary[Terms, Expr]] = WeakValueDictionary()  # they live while someone holds them
    terms: Terms
    _hash: int
    _bounds: Bounds | None

    def __new__(cls, terms: Terms) -> Expr:
        found = cls._interned.get(terms)
        if found is None:
            found = object.__new__(cls)
            found.terms = terms
            found._hash = hash(terms)
            found._bounds = None
            found = cls._interned.setdefault(terms, found)
        return found

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self is constant(other)
        return self is other

    def __reduce__(self):
        return (Expr, (self.terms,))

    # -- arithmetic ---------------------------------------------------------------------------
    def __add__(self, other: ExprLike) -> Expr:
        other = expr(other)
        if not self.terms:
            return other
        return _sum(self, other) if other.terms else self

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return self * -1

    def __sub__(self, other: ExprLike) -> Expr:
        return self + (-expr(other))

    def __rsub__(self, other: ExprLike) -> Expr:
        return expr(other) - self

    def __mul__(self, other: ExprLike) -> Expr:
        other = expr(other)
        return self if other is ONE else _product(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: ExprLike) -> Expr:
        return floordiv(self, expr(other))

    def __mod__(self, other: ExprLike) -> Expr:
        return mod(self, expr(other))

    # -- questions ----------------------------------------------------------------------------
    @property
    def is_int(self) -> bool:
        return not self.terms or (len(self.terms) == 1 and not self.terms[0][0])

    @property
    def int(self) -> int:
        if not self.terms:
            return 0
        if not self.is_int:
            raise NotConstant(f"{self} is known only at run time")
        return self.terms[0][1]

    def atoms(self) -> Iterator[Atom]:
        """Every atom, those inside divisions included."""
        for monomial, _ in self.terms:
            for atom in monomial:
                yield atom
                if isinstance(atom, (FloorDiv, Mod)):
                    yield from atom.num.atoms()
                    yield from atom.den.atoms()

    def axes(self) -> set[Axis]:
        return set(_axes(self))

    def values(self) -> set[Value]:
        return {a for a in self.atoms() if isinstance(a, Value)}

    def coefficient(self, axis: Axis) -> Expr | None:
        """`c` when the expression is `c*axis + rest` with no `axis` in `rest`; None when it is not linear in it."""
        found = ZERO
        for monomial, c in self.terms:
            if axis in monomial:
                rest = list(monomial)
                rest.remove(axis)
                if axis in rest or any(isinstance(a, (FloorDiv, Mod)) and axis in _axes(_atom(a)) for a in rest):
                    return None
                found = found + Expr(((tuple(rest), c),))
            elif any(isinstance(a, (FloorDiv, Mod)) and axis in _axes(_atom(a)) for a in monomial):
                return None
        return found

    def bounds(self) -> Bounds:
        """Inclusive lower and upper bound; None where it is not known."""
        if self._bounds is None:
            self._bounds = _bounds(self)
        return self._bounds

    def substitute(self, mapping: Mapping[Any, Any]) -> Expr:
        """Every atom in `mapping` replaced, and the result simplified again."""
        if not mapping:
            return self
        total = ZERO
        for monomial, c in self.terms:
            product = constant(c)
            for atom in monomial:
                if atom in mapping:
                    product = product * expr(mapping[atom])
                elif isinstance(atom, FloorDiv):
                    product = product * (atom.num.substitute(mapping) // atom.den.substitute(mapping))
                elif isinstance(atom, Mod):
                    product = product * (atom.num.substitute(mapping) % atom.den.substitute(mapping))
                else:
                    product = product * expr(atom)
            total = total + product
        return total

    def evaluate(self, value_of: Callable[[Atom], object]) -> object:
        """The number (or NumPy array) it stands for, with each axis, size and value looked up."""
        total: object = 0
        for monomial, c in self.terms:
            product: object = c
            for atom in monomial:
                if isinstance(atom, FloorDiv):
                    product = product * (atom.num.evaluate(value_of) // atom.den.evaluate(value_of))  # type: ignore[operator]
                elif isinstance(atom, Mod):
                    product = product * (atom.num.evaluate(value_of) % atom.den.evaluate(value_of))  # type: ignore[operator]
                else:
                    product = product * value_of(atom)  # type: ignore[operator]
            total = total + product  # type: ignore[operator]
        return total

    def at(self, sizes: Measures) -> Integer:
        """The value of an expression in sizes alone, at these sizes."""
        return self.int if self.is_int else cast(Integer, self.evaluate(lambda size: cast(Size, size).at(sizes)))

    @property
    def hint(self) -> Integer:
        """A likely value: sizes at their hints, an axis at its size."""

        def likely(atom: Atom) -> Integer:
            return atom.hint if isinstance(atom, Size) else atom.size.hint if isinstance(atom, Axis) else 1

        return cast(Integer, self.evaluate(likely))

    def __repr__(self) -> str:
        if not self.terms:
            return "0"
        parts = []
        for monomial, c in self.terms:
            factors = [repr(a) for a in monomial]
            if c != 1 or len(factors) != 1:
                # Read as Python reads it: without its brackets, `3*(i//2)` would be `(3*i)//2`.
                factors = [f"({a!r})" if isinstance(a, (FloorDiv, Mod)) else repr(a) for a in monomial]
            if c != 1 or not factors:
                factors.insert(0, str(c))
            parts.append("*".join(factors))
        return " + ".join(parts).replace("+ -", "- ")


def _operand(e: Expr) -> str:
    text = repr(e)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


# Layers are alike, and ask for the same sums and products again.
@remembered
def _sum(left: Expr, right: Expr) -> Expr:
    total = dict(left.terms)
    for monomial, coefficient in right.terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    return _from_dict(total)


@remembered
def _product(left: Expr, right: Expr) -> Expr:
    if right.is_int:
        factor = right.int
        return Expr(tuple((m, c * factor) for m, c in left.terms)) if factor else ZERO
    if left.is_int:
        return right * left
    total: dict[Monomial, int] = {}
    for m1, c1 in left.terms:
        for m2, c2 in right.terms:
            m = tuple(sorted(m1 + m2))
            total[m] = total.get(m, 0) + c1 * c2
    return _from_dict(total)


def _from_dict(total: dict[Monomial, int]) -> Expr:
    terms = [(m, c) for m, c in total.items() if c]
    if len(terms) > 1:
        terms = _recombine(terms)
        terms.sort(key=_term_order)
    return Expr(tuple(terms))


def _term_order(term: tuple[Monomial, int]) -> tuple:
    monomial, coefficient = term
    # Largest strides first, the constant last: the order in which a person writes an index.
    return (not monomial, -abs(coefficient), tuple(_order(a) for a in monomial))


def _recombine(terms: list[tuple[Monomial, int]]) -> list[tuple[Monomial, int]]:
    """`c*n*(x//n) + c*(x%n)` becomes `c*x`, as often as it applies."""
    if not any(isinstance(a, Mod) for m, _ in terms for a in m):
        return terms
    total = dict(terms)
    for monomial, c in terms:
        for atom in monomial:
            if not isinstance(atom, Mod) or len(atom.den.terms) != 1:
                continue
            den_atoms, den_c = atom.den.terms[0]
            rest = list(monomial)
            rest.remove(atom)
            quotient = atom.num // atom.den
            if len(quotient.terms) != 1 or quotient.terms[0][1] != 1:
                continue
            partner = tuple(sorted((*rest, *quotient.terms[0][0], *den_atoms)))
            if total.get(partner) != c * den_c:
                continue
            del total[partner], total[monomial]
            whole = Expr(((tuple(rest), c),)) * atom.num + Expr(())
            merged = dict(total)
            for m, k in whole.terms:
                merged[m] = merged.get(m, 0) + k
            return _recombine([(m, k) for m, k in merged.items() if k])
    return list(total.items())


@remembered
def constant(n: int) -> Expr:
    return Expr((((), n),)) if n else Expr(())


ZERO = constant(0)
ONE = constant(1)


@remembered
def _atom(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))


def expr(x: ExprLike) -> Expr:
    if isinstance(x, Expr):
        return x
    if isinstance(x, Atom):
        return _atom(x)
    return constant(int(x))


@remembered
def _axes(e: Expr) -> frozenset[Axis]:
    return frozenset(a for a in e.atoms() if isinstance(a, Axis))


def _atom_bounds(atom: Atom) -> tuple[int | None, int | None]:
    if isinstance(atom, Axis):
        high = atom.size.bounds()[1]
        return 0, None if high is None else high - 1
    if isinstance(atom, Size):
        return atom.least, None
    if isinstance(atom, Value):
        if atom.limit is None:
            return None, None
        high = atom.limit.bounds()[1]
        return 0, None if high is None else high - 1
    if isinstance(atom, (FloorDiv, Mod)) and not is_positive(atom.den):
        return None, None
    if isinstance(atom, Mod):
        low, high = atom.num.bounds()
        den = atom.den.bounds()[1]
        bounded = None if den is None else den - 1
        if low is not None and low >= 0 and high is not None:
            bounded = high if bounded is None else min(high, bounded)
        return 0, bounded
    assert isinstance(atom, FloorDiv)
    low, high = atom.num.bounds()
    if not atom.den.is_int:
        return (0 if low is not None and low >= 0 else None), (high if low is not None and low >= 0 else None)
    den = atom.den.int
    return (None if low is None else low // den), (None if high is None else high // den)


def is_positive(e: Expr) -> bool:
    low = e.bounds()[0]
    return low is not None and low > 0


def _bounds(e: Expr) -> tuple[int | None, int | None]:
    low: int | None = 0
    high: int | None = 0
    for monomial, c in e.terms:
        lo: int | None = 1
        hi: int | None = 1
        for atom in monomial:
            a_lo, a_hi = _atom_bounds(atom)
            # Products are bounded only for non-negative factors, which is what indices are made of.
            if a_lo is None or a_lo < 0 or lo is None:
                lo, hi = None, None
            else:
                lo, hi = lo * a_lo, (None if hi is None or a_hi is None else hi * a_hi)
        if len(monomial) == 1 and lo is None:
            lo, hi = _atom_bounds(monomial[0])
        if c < 0:
            lo, hi = hi, lo
        low = None if low is None or lo is None else low + c * lo
        high = None if high is None or hi is None else high + c * hi
    return low, high


def _divide(terms: Iterable[tuple[Monomial, int]], den: Expr) -> tuple[dict, dict] | None:
    """Terms that `den` (an int or a single product) divides, divided; and the others."""
    if len(den.terms) != 1:
        return None
    den_atoms, den_c = den.terms[0]
    exact: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, c in terms:
        left = list(monomial)
        fits = c % den_c == 0
        for atom in den_atoms:
            if atom in left:
                left.remove(atom)
            else:
                fits = False
        if fits:
            exact[tuple(left)] = c // den_c
        else:
            rest[monomial] = c
    return exact, rest


@remembered
def floordiv(num: Expr, den: Expr) -> Expr:
    if den is ONE or not num.terms:
        return num
    if num is den:
        return ONE
    if num.is_int and den.is_int:
        return constant(num.int // den.int)
    if not den.is_int and _within(num, den):
        return ZERO
    split = _divide(num.terms, den)
    if split is None:
        return _atom(FloorDiv(num, den))
    exact, rest = split
    quotient, remainder = _from_dict(exact), _from_dict(rest)
    if _within(remainder, den):
        return quotient
    if quotient.terms:
        return quotient + floordiv(remainder, den)
    if den.is_int and den.int > 0:
        parts = _split_low(num, den.int)
        if parts is not None:
            return floordiv(parts[0], den)
        shared = gcd(_content(num), den.int)
        if shared > 1:
            return floordiv(_scale_down(num, shared), constant(den.int // shared))
        if len(num.terms) == 1 and num.terms[0][1] == 1 and len(num.terms[0][0]) == 1:
            atom = num.terms[0][0][0]
            if isinstance(atom, FloorDiv) and atom.den.is_int:
                return floordiv(atom.num, constant(atom.den.int * den.int))
            if isinstance(atom, Mod) and atom.den.is_int and atom.den.int > 0 and atom.den.int % den.int == 0:
                return mod(floordiv(atom.num, den), constant(atom.den.int // den.int))
    return _atom(FloorDiv(num, den))


@remembered
def mod(num: Expr, den: Expr) -> Expr:
    if den is ONE or not num.terms or num is den:
        return ZERO
    if num.is_int and den.is_int:
        return constant(num.int % den.int)
    if _within(num, den):
        return num
    split = _divide(num.terms, den)
    if split is None:
        return _atom(Mod(num, den))
    remainder = _from_dict(split[1])
    if remainder is not num:
        return mod(remainder, den)
    if den.is_int and den.int > 0:
        shared = gcd(_content(remainder), den.int)
        if shared > 1:
            return mod(_scale_down(remainder, shared), constant(den.int // shared)) * shared
        parts = _split_low(remainder, den.int)
        if parts is not None:
            return mod(parts[0], den) + parts[1]
        if len(remainder.terms) == 1 and remainder.terms[0][1] == 1 and len(remainder.terms[0][0]) == 1:
            atom = remainder.terms[0][0][0]
            if isinstance(atom, Mod) and atom.den.is_int and atom.den.int % den.int == 0:
                return mod(atom.num, den)
    return _atom(Mod(remainder, den))


def _within(e: Expr, den: Expr) -> bool:
    """Whether `0 <= e < den` always holds."""
    return is_nonnegative(e) and is_below(e, den)


def is_below(e: Expr, limit: Expr) -> bool:
    """Whether `e < limit` always holds, as far as can be proved."""
    high = e.bounds()[1]
    if limit.is_int:
        return high is not None and high < limit.int
    largest = _largest(e)
    return largest is not None and is_nonnegative(limit - 1 - largest)


def _largest(e: Expr) -> Expr | None:
    """An upper bound in sizes alone: every axis at its last step. Products are bounded for non-negative factors."""
    total = ZERO
    for monomial, c in e.terms:
        product = constant(c)
        sizes = [atom for atom in monomial if isinstance(atom, Size)]
        if len(sizes) < len(monomial) and any(size.least is None or size.least < 0 for size in sizes):
            return None
        for atom in monomial:
            if isinstance(atom, Size):
                product = product * atom
                continue
            low = _atom_bounds(atom)[0]
            if low is None or low < 0:
                return None
            most = ZERO if c < 0 else _last(atom)  # at least nothing is subtracted
            if most is None:
                return None
            product = product * most
        total = total + product
    return total


def _last(atom: Atom) -> Expr | None:
    """An upper bound, in sizes alone, of an atom that is never negative."""
    if isinstance(atom, Axis):
        return atom.size - 1
    if isinstance(atom, Value):
        return None if atom.limit is None else atom.limit - 1
    if isinstance(atom, Mod):
        return atom.den - 1
    assert isinstance(atom, FloorDiv)
    most = _largest(atom.num)
    if most is None:
        return None
    steps = (most + 1) // atom.den
    if steps * atom.den is most + 1:
        return steps - 1
    quotient = most // atom.den
    return quotient if all(isinstance(a, Size) for a in quotient.atoms()) else most


def is_nonnegative(e: Expr) -> bool:
    """Whether `e >= 0` for all sizes: written in what they exceed their least value by, no term is negative."""
    low = e.bounds()[0]
    if low is not None and low >= 0:
        return True
    atoms = {a for monomial, _ in e.terms for a in monomial}
    sizes = {a: a.least for a in atoms if isinstance(a, Size) and a.least is not None}
    if len(sizes) < len(atoms):
        if all(isinstance(a, Size) for a in atoms):
            return False
        negated = _largest(-e)
        return negated is not None and all(isinstance(a, Size) for a in negated.atoms()) and is_nonnegative(-negated)
    # `s` standing for what it exceeds its least value by from here on.
    shifted = e.substitute({s: expr(s) + least for s, least in sizes.items()})
    return all(c >= 0 for _, c in shifted.terms)


def _content(e: Expr) -> int:
    shared = 0
    for _, c in e.terms:
        shared = gcd(shared, c)
    return shared


def _split_low(e: Expr, den: int) -> tuple[Expr, Expr] | None:
    """`e` as `high + low`, where a step that divides `den` and all of `high` is more than `low` can reach.

    Such a `low` never carries: `(high + low) // den` is `high // den`.
    """
    moving = [term for term in e.terms if term[0]]
    offset = e.terms[-1][1] if not e.terms[-1][0] else 0
    step = den
    for i, (_, c) in enumerate(moving, 1):
        step = gcd(step, c)
        if step == 1:
            return None
        low = Expr(tuple(moving[i:])) + offset % step
        if low.terms and _within(low, constant(step)):
            return e - low, low
    return None


def _scale_down(e: Expr, factor: int) -> Expr:
    return Expr(tuple((m, c // factor) for m, c in e.terms))
