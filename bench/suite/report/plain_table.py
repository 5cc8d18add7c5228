"""Tables of the terminal."""

from rich.table import Table


def plain_table(*columns: str, pad_edge: bool = True) -> Table:
    """An empty table without lines, whose fields are not wrapped."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=pad_edge)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table
