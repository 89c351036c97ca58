"""What snapshots come to: which lines hold more, whoever allocates for them."""

from __future__ import annotations

from guardrun.hooks.examine.growth import MAX_SITES, add_up, choose_sites, find_sites, merge

USERS = ("/home/me/train.py", 10)
LIBRARY = ("/v/lib/python3.11/site-packages/lib/cache.py", 5)


def test_allocations_of_a_stack_are_added_up_without_our_own() -> None:
    own = ("/x/guardrun/hooks/examine/allocations.py", 3)
    traces = [(0, 10, (USERS,), 1), (0, 5, (USERS,), 1), (7, 1, (own, USERS), 2), (0, 2, (LIBRARY, own), 2)]
    assert add_up(traces) == {(USERS,): (15, 2)}


def test_what_counts_is_the_lesser_of_two_beyond_the_greater_of_two() -> None:
    one, other = {(USERS,): (10, 1)}, {(USERS,): (7, 3), (LIBRARY,): (4, 1)}
    assert merge(one, other, max) == {(USERS,): (10, 3), (LIBRARY,): (4, 1)}
    assert merge(one, other, min) == {(USERS,): (7, 1), (LIBRARY,): (0, 0)}


def test_a_library_that_allocates_is_told_by_the_users_line() -> None:
    before = {(LIBRARY, USERS): (100, 1), (USERS,): (50, 1)}
    after = {(LIBRARY, USERS): (400, 4), (LIBRARY, ("/home/me/eval.py", 3)): (5, 1), (USERS,): (20, 1)}
    found = [site.describe() for site in find_sites(before, after)]
    assert [(site["file"], site["line"], site["bytes"], site["objects"]) for site in found] == [
        (*USERS, 300, 3),
        ("/home/me/eval.py", 3, 5, 1),
    ]
    assert found[0]["stack"] == [list(LIBRARY), list(USERS)]


def test_stacks_that_lead_to_one_line_are_one_site() -> None:
    ways = [("/home/me/main.py", 1), ("/home/me/main.py", 2)]
    (site,) = find_sites({}, {(USERS, ways[0]): (10, 1), (USERS, ways[1]): (30, 1)})
    assert (site.size, site.count, site.stack) == (40, 2, (USERS, ways[1]))


def test_beside_the_largest_those_with_most_objects_are_shown() -> None:
    sums = {(("/home/me/a.py", n),): (1000 - n, 1) for n in range(30)} | {(("/home/me/b.py", 1),): (8, 900)}
    shown = choose_sites(find_sites({}, sums))
    assert len(shown) == MAX_SITES + 1
    assert shown[-1].describe()["objects"] == 900
