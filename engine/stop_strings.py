"""Finding stop strings in a stream of text, one character at a time, whatever the borders of its pieces.

An Aho-Corasick automaton over the stop strings: its state is the longest beginning of a stop string that the text so
far ends with, which is exactly the text that must be held back. (Aho and Corasick, 1975.)
"""

from functools import lru_cache


class StopAutomaton:
    """The automaton of one set of stop strings. Immutable, shared by all streams that use the same set."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.edges: list[dict[str, int]] = [{}]
        self.depth = [0]
        """Length of the held-back text in each state."""
        self.match: list[str | None] = [None]
        """The longest stop string that the text ends with in each state."""
        self.fallback = [0]
        for stop in stops:
            self._insert(stop)
        self._link()
        self.beginnings = frozenset(self.edges[0])
        """The characters that a stop string begins with."""

    def advance(self, state: int, character: str) -> int:
        """The state after one more character."""
        edges = self.edges
        while character not in edges[state]:
            if state == 0:
                return 0
            state = self.fallback[state]
        return edges[state][character]

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self.edges[state]:
                self.edges[state][character] = len(self.edges)
                self.edges.append({})
                self.depth.append(self.depth[state] + 1)
                self.match.append(None)
                self.fallback.append(0)
            state = self.edges[state][character]
        self.match[state] = stop

    def _link(self) -> None:
        """Set each state's fallback: the longest proper ending of its text that is a state too. Breadth first."""
        queue = list(self.edges[0].values())
        for state in queue:
            for character, child in self.edges[state].items():
                self.fallback[child] = self.advance(self.fallback[state], character)
                queue.append(child)
            if self.match[state] is None:
                self.match[state] = self.match[self.fallback[state]]


@lru_cache(maxsize=256)
def stop_automaton(stops: tuple[str, ...]) -> StopAutomaton:
    """The automaton of ``stops``, built once for equal sets."""
    return StopAutomaton(stops)


class StopScanner:
    """One stream's place in the automaton.

    The stop string that is *completed first* wins, of several completed by the same character the longest, so the
    result depends on the text alone and not on how it was cut into tokens.
    """

    def __init__(self, stops: list[str], include_in_output: bool) -> None:
        self._automaton = stop_automaton(tuple(stops))
        self._include = include_in_output
        self._state = 0
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found."""

    def feed(self, text: str, armed: bool = True) -> str:
        """Take more text; return what can be shown now. After a match, that is the last of it.

        Not ``armed``, a match is passed over (the output is not long enough yet to be allowed to end).
        """
        automaton = self._automaton
        if self._state == 0 and automaton.beginnings.isdisjoint(text):
            return text
        state = self._state
        for index, character in enumerate(text):
            state = automaton.advance(state, character)
            found = automaton.match[state]
            if found is not None and armed:
                return self._finish(found, text, index)
        self._state = state
        total = self._held + text
        shown = len(total) - automaton.depth[state]
        self._held = total[shown:]
        return total[:shown]

    def flush(self) -> str:
        """Give up what is held back: no more text comes."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _finish(self, found: str, text: str, index: int) -> str:
        self.matched = found
        end = len(self._held) + index + 1
        total = self._held + text
        self._held = ""
        return total[:end] if self._include else total[: end - len(found)]
