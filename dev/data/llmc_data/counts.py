"""What a command counts of its rows, for its output and the manifest."""

from dataclasses import asdict, dataclass, field


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """ "1 document", "1,200 documents"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


@dataclass
class Counts:
    rows: int = 0  # of JSON lines and tables
    bad: int = 0  # of them, which were skipped
    first_bad: str | None = None  # what is wrong with the first one, and where
    shapes: dict[str, int] = field(default_factory=dict)  # conversations by what their rows were
    several: int = 0  # conversations that became several documents
    spelt: int = 0  # special tokens that are spelt in texts, or by others than the assistant
    first_spelt: str | None = None  # the first one, and where
    ends: dict[str, int] = field(default_factory=dict)  # turns that the special token of this number ends

    def add(self, other: "Counts") -> None:
        """What follows this."""
        for name, value in asdict(other).items():
            mine = getattr(self, name)
            if isinstance(value, dict):
                setattr(self, name, {key: mine.get(key, 0) + value.get(key, 0) for key in mine | value})
            else:
                setattr(self, name, mine + value if isinstance(value, int) else mine or value)

    def end_of_turn(self) -> list[int]:
        """The special tokens that end learnt turns, the most frequent first."""
        return [int(number) for number in sorted(self.ends, key=lambda number: (-self.ends[number], int(number)))]

    def describe(self) -> dict:
        """For the manifest."""
        counts = {"read": self.rows, "skipped": self.bad}
        return counts | ({"of_several_documents": self.several, "kinds": self.shapes} if self.shapes else {})
