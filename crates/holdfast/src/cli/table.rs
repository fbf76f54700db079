//! Tables for people: columns as wide as they need to be, two spaces apart.

use std::fmt::Write as _;

/// How a cell looks on a terminal with colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As everything.
    #[default]
    Plain,
    /// Well.
    Good,
    /// Worth a look.
    Warn,
    /// Not well.
    Bad,
    /// Of little interest.
    Faint,
}

/// One place of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// With a tone.
    #[expect(clippy::needless_pass_by_value, reason = "callers hand over what they have")]
    pub(crate) fn toned(text: impl ToString, tone: Tone) -> Cell {
        Cell { text: text.to_string(), tone }
    }

    /// What may be absent.
    pub(crate) fn maybe(text: Option<impl ToString>) -> Cell {
        text.map_or_else(|| Cell::toned("-", Tone::Faint), Cell::from)
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::toned(text, Tone::Plain)
    }
}

/// Which way a column leans, and who sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    /// Text.
    Left(&'static str),
    /// Numbers.
    Right(&'static str),
    /// Text that only `-o wide` shows.
    Wide(&'static str),
}

impl Column {
    fn name(self) -> &'static str {
        match self {
            Column::Left(name) | Column::Right(name) | Column::Wide(name) => name,
        }
    }
}

/// A table with its rows.
pub(crate) struct Table {
    columns: &'static [Column],
    rows: Vec<Vec<Cell>>,
}

/// How a table is printed.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    /// Every column, not only the usual ones.
    pub(crate) wide: bool,
    /// With colours.
    pub(crate) colour: bool,
}

impl Table {
    pub(crate) fn new(columns: &'static [Column]) -> Table {
        Table { columns, rows: Vec::new() }
    }

    pub(crate) fn push(&mut self, row: Vec<Cell>) {
        self.rows.push(row);
    }

    /// As text; `wide` shows every column.
    pub(crate) fn render(&self, Look { wide, colour }: Look) -> String {
        let shown: Vec<usize> = (0..self.columns.len())
            .filter(|&at| wide || !matches!(self.columns.get(at), Some(Column::Wide(_))))
            .collect();
        let head = self.columns.iter().map(|column| Cell::from(column.name())).collect();
        let lines: Vec<&Vec<Cell>> = std::iter::once(&head).chain(&self.rows).collect();
        let width = |at: usize| {
            let cells = lines.iter().filter_map(|line| line.get(at));
            cells.map(|cell| cell.text.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = shown.iter().map(|&at| width(at)).collect();
        let mut text = String::new();
        for line in lines {
            let mut row = String::new();
            for (&at, &width) in shown.iter().zip(&widths) {
                let none = Cell::default();
                let cell = line.get(at).unwrap_or(&none);
                let pad = " ".repeat(width.saturating_sub(cell.text.chars().count()));
                let painted = paint(&cell.text, cell.tone, colour);
                let right = matches!(self.columns.get(at), Some(Column::Right(_)));
                let gap = if row.is_empty() { "" } else { "  " };
                // Writing to a string cannot fail.
                let _ = if right {
                    write!(row, "{gap}{pad}{painted}")
                } else {
                    write!(row, "{gap}{painted}{pad}")
                };
            }
            text.push_str(row.trim_end());
            text.push('\n');
        }
        text
    }
}

/// The text in its colour, if there are any.
pub(crate) fn paint(text: &str, tone: Tone, colour: bool) -> String {
    let code = match tone {
        _ if !colour => return text.to_owned(),
        Tone::Plain => return text.to_owned(),
        Tone::Good => 32,
        Tone::Warn => 33,
        Tone::Bad => 31,
        Tone::Faint => 2,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let columns = &[Column::Left("NAME"), Column::Wide("ZONE"), Column::Right("SIZE")];
        let mut table = Table::new(columns);
        table.push(vec!["é-1".into(), "a".into(), 7.into()]);
        table.push(vec![Cell::toned("long-name", Tone::Bad), Cell::maybe(None::<u8>), 1234.into()]);
        table
    }

    #[test]
    fn columns_are_as_wide_as_they_need_to_be() {
        let narrow = "NAME       SIZE\né-1           7\nlong-name  1234\n";
        assert_eq!(sample().render(Look { wide: false, colour: false }), narrow);
        let wide = "NAME       ZONE  SIZE\né-1        a        7\nlong-name  -     1234\n";
        assert_eq!(sample().render(Look { wide: true, colour: false }), wide);
    }

    #[test]
    fn colours_do_not_move_columns() {
        let coloured = sample().render(Look { wide: false, colour: true });
        assert!(coloured.contains("\x1b[31mlong-name\x1b[0m  1234\n"), "{coloured:?}");
    }
}
