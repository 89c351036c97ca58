"""What counts as dead, look by look: all zeros for long, with something coming in, and not so before."""

from __future__ import annotations

from guardrun.hooks.guards.module_lives import ALIVE, ALMOST, DEAD, Death, Lives, Seen, judge

WELL, SPARSE, NOTHING = 0.4, 10 * ALMOST, 0.0


class Net:
    """Three modules that are called one after the other, at steps 10, 20, …"""

    def __init__(self) -> None:
        self.lives = [Lives() for _ in range(3)]
        self.step = 0
        self.found: Death | None = None

    def look(self, count: int, *calls: tuple[float | None, float | None, float | None]) -> Death | None:
        """So many looks: of each module what comes in, what it gives out, and the gradient of that."""
        for _ in range(count):
            self.step += 10
            seen = [Seen(lives, *shares) for lives, shares in zip(self.lives, calls, strict=False)]
            self.found = self.found or judge(self.step, seen)
        return self.found


FINE = (WELL, WELL, WELL)
SHUT = (WELL, NOTHING, WELL)
UNFED = (NOTHING, NOTHING, NOTHING)


def test_an_output_that_dies() -> None:
    net = Net()
    net.look(ALIVE, FINE, FINE, FINE)
    assert net.look(DEAD - 1, FINE, SHUT, UNFED) is None
    assert net.look(1, FINE, SHUT, UNFED) == Death("output", 1, [], 10 * (ALIVE + 1), DEAD, ALIVE)


def test_the_first_of_several_is_named() -> None:
    net = Net()
    net.look(20, FINE, FINE, FINE)
    assert net.look(DEAD, FINE, SHUT, SHUT) == Death("output", 1, [2], 210, DEAD, 20)


def test_zeros_from_the_start_and_those_that_go_away() -> None:
    net = Net()
    assert net.look(3 * DEAD, FINE, SHUT, FINE) is None, "a layer that begins with zeros"
    net.look(ALIVE - 1, FINE, FINE, FINE)
    assert net.look(DEAD, FINE, SHUT, FINE) is None, "and has been well for a moment only"
    for _ in range(20):
        assert net.look(DEAD - 1, FINE, SHUT, FINE) is None
        net.look(1, FINE, (WELL, SPARSE, WELL), FINE)
    assert net.look(5 * DEAD, FINE, (WELL, SPARSE, WELL), FINE) is None, "few are not none"


def test_where_nothing_comes_in_nothing_goes_out() -> None:
    net = Net()
    net.look(ALIVE, FINE, FINE, FINE)
    assert net.look(5 * DEAD, FINE, UNFED, UNFED) is None
    assert net.look(5 * DEAD, FINE, (None, NOTHING, NOTHING), FINE) is None, "nor where nobody knows"
    assert net.look(5 * DEAD, FINE, (WELL, None, None), FINE) is None
    assert net.look(DEAD - 1, FINE, SHUT, FINE) is None
    assert net.look(DEAD, FINE, UNFED, UNFED) is None, "looks that say nothing do not count"
    assert net.look(1, FINE, SHUT, FINE) == Death("output", 1, [], net.step - 10 * (2 * DEAD - 1), DEAD, ALIVE)


LOST = (WELL, WELL, NOTHING)


def test_what_is_lost_between_two_modules() -> None:
    net = Net()
    net.look(ALIVE, FINE, FINE, FINE)
    assert net.look(DEAD, LOST, LOST, (NOTHING, WELL, WELL)) == Death("gradient", 0, [1], 60, DEAD, ALIVE)


def test_a_gradient_alone_that_is_zero_says_nothing() -> None:
    net = Net()
    net.look(ALIVE, FINE, FINE, FINE)
    assert net.look(5 * DEAD, LOST, FINE, FINE) is None, "its loss weighs nothing, and the main one comes after"
    assert net.look(5 * DEAD, FINE, LOST, LOST) is None, "and before"
    assert net.look(5 * DEAD, FINE, FINE, (WELL, WELL, None)) is None
    other = Net()
    other.look(ALIVE, FINE, FINE, UNFED)
    assert other.look(5 * DEAD, FINE, LOST, UNFED) is None, "the next one was never given anything"


def test_a_gradient_that_comes_back_is_not_lost() -> None:
    net = Net()
    net.look(ALIVE, FINE, FINE, FINE)
    for _ in range(4):
        assert net.look(DEAD - 1, FINE, LOST, (NOTHING, WELL, WELL)) is None
        assert net.look(1, FINE, LOST, LOST) is None


def test_what_is_meant_to_be_zero_is_no_death_and_no_loss_on_the_way() -> None:
    net = Net()
    net.look(ALIVE, FINE, FINE, FINE)
    for _ in range(5 * DEAD):
        net.step += 10
        shares = (LOST, SHUT, (NOTHING, WELL, WELL))
        seen = [Seen(net.lives[n], *shares[n], is_judged=n != 1) for n in range(3)]
        assert judge(net.step, seen) is None
