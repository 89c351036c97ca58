"""What a sound page is: well formed, and complete without the network."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br"}


class Checker(HTMLParser):
    """Every element closed in its order; nothing that fetches, runs or leaves the page's own folder."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe", "object", "b"), tag
        for name, value in attrs:
            assert name not in ("src", "onclick", "onload", "style"), name
            assert name != "href" or ":" not in (value or ""), value
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def check(page: str) -> str:
    """The page's text, once it is found sound."""
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert "url(" not in page.replace("url(#", "") and "@import" not in page
    return " ".join(checker.texts)


class Hostile:
    """Texts that would compute, run or open an element if anything took them for more; each is another one."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self) -> str:
        self.said.append(f"{{{{ 7*7 }}}}{{% x %}}<script>{len(self.said)}<script>")
        return self.said[-1]

    def missing_in(self, page: str) -> list[str]:
        """Those that are neither text on a page nor what is shown on hovering over it."""
        check(page)
        reader = Reader()
        reader.feed(page)
        reader.close()
        return [said for said in self.said if not any(said in shown for shown in reader.shown)]


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shown += [value for name, value in attrs if value and name in ("title", "aria-label", "href")]

    def handle_data(self, data: str) -> None:
        self.shown.append(data)
