"""The protocols' tables as `docs/coordinator.md` has them."""

from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "coordinator.md"


def transitions(heading):
    """(state, event) to (next state, the last column), of the table under a heading."""
    section = DOCS.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    found = {(state.strip("`"), event): (after.strip("`"), last) for state, event, after, last in cells}
    assert len(found) == len(rows), "a state and event stand twice in the table"
    return found
