//! Rows to text: columns that align, in as many columns of a terminal as there are.
//!
//! A function of rows and room. What the columns are, and which go first, is said by whoever makes the table.

use super::cells::{columns, lines, shortened};

/// Room that lines have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// As much as it takes: nobody looks at a screen, or everything was asked for.
    Whole,
    /// So many columns of a terminal.
    Columns(usize),
}

impl Room {
    /// A line that is no row of a table, such as a heading of a screen.
    pub(crate) fn cut(self, line: &str) -> String {
        match self {
            Room::Whole => line.to_string(),
            Room::Columns(most) => shortened(line, most),
        }
    }

    /// A sentence that begins behind so many columns of its line; what has no room goes on below that.
    pub(crate) fn wrapped(self, text: &str, behind: usize) -> String {
        match self {
            Room::Whole => text.to_string(),
            Room::Columns(most) => {
                let lines = lines(text, most.saturating_sub(behind));
                lines.join(&format!("\n{}", " ".repeat(behind)))
            }
        }
    }
}

/// Where a column's text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Between two columns.
const GAP: &str = "  ";
/// A column of text that is shortened has so many columns of the terminal at least; below that it goes. Those that
/// never go have less when there is no other way.
const SHORTEST: usize = 16;

/// Rows below a header. Numbers are aligned to the right, when the column says so.
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    /// Names of columns: the first goes first.
    go: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of columns, and the order in which these go where there is too little room. Those that are not in it
    /// never go.
    pub(crate) fn new(columns: &[(&'static str, Align)], go: &'static [&'static str]) -> Table {
        Table { columns: columns.to_vec(), go, rows: Vec::new() }
    }

    /// One row more; its cells in the order of the columns.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.into_iter().map(|cell| super::plain(&cell)).collect());
    }

    /// The table with a newline at the end of each line and no blanks before it, and below it how much of it has no
    /// room.
    pub(crate) fn text(&self, room: Room) -> String {
        let (text, gone) = self.fitted(room);
        match gone {
            0 => text,
            1 => text + "and 1 column more: --wide\n",
            gone => text + &format!("and {gone} columns more: --wide\n"),
        }
    }

    /// The same for a screen that is filled to its last line: without a word of what has no room.
    pub(crate) fn lines(&self, room: Room) -> String {
        self.fitted(room).0
    }

    /// The lines, and how many columns have gone.
    fn fitted(&self, room: Room) -> (String, usize) {
        let header: Vec<String> = self.columns.iter().map(|(name, _)| name.to_string()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&header).chain(&self.rows).collect();
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(|cell| columns(cell)).max()
        };
        let whole = (0..self.columns.len()).map(|column| width(column).unwrap_or(0));
        let mut widths: Vec<Option<usize>> = whole.map(Some).collect();
        if let Room::Columns(most) = room {
            self.let_go(&mut widths, most);
            self.shorten(&mut widths, most);
        }
        let mut text = String::new();
        for line in lines {
            let cells = line.iter().zip(&self.columns).zip(&widths);
            let cells: Vec<String> = cells
                .filter_map(|((cell, (_, align)), width)| Some(placed(cell, *align, (*width)?)))
                .collect();
            // Of numbers alone there may be too many for what is hardly a terminal.
            text.push_str(&room.cut(cells.join(GAP).trim_end()));
            text.push('\n');
        }
        (text, widths.iter().filter(|width| width.is_none()).count())
    }

    /// Columns go, in their order, until the rest has room; two of one name go together. Of text a part stays where
    /// that is enough.
    fn let_go(&self, widths: &mut [Option<usize>], most: usize) {
        for name in self.go {
            if taken(widths) <= most {
                return;
            }
            for (at, (its, align)) in self.columns.iter().enumerate() {
                let over = taken(widths).saturating_sub(most);
                let Some(width) = widths.get_mut(at).filter(|_| its == name) else { continue };
                let least = SHORTEST.max(columns(its));
                let left = width.and_then(|whole| whole.checked_sub(over));
                *width = left.filter(|left| *align == Align::Left && *left >= least);
            }
        }
    }

    /// Of the text that stays the longest is shortened, until all has room.
    fn shorten(&self, widths: &mut [Option<usize>], most: usize) {
        for _ in most..taken(widths) {
            let texts = widths
                .iter_mut()
                .zip(&self.columns)
                .filter(|(_, (_, align))| *align == Align::Left);
            let longest = texts.filter_map(|(width, _)| width.as_mut()).max_by_key(|width| **width);
            let Some(longest) = longest.filter(|width| **width > 1) else { return };
            *longest -= 1;
        }
    }
}

/// Columns of the terminal that all of them take.
fn taken(widths: &[Option<usize>]) -> usize {
    let there = widths.iter().flatten();
    there.clone().sum::<usize>() + GAP.len() * there.count().saturating_sub(1)
}

/// A cell in so many columns.
fn placed(cell: &str, align: Align, width: usize) -> String {
    let cell = shortened(cell, width);
    let blanks = " ".repeat(width.saturating_sub(columns(&cell)));
    match align {
        Align::Left => cell + &blanks,
        Align::Right => blanks + &cell,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks() -> Table {
        let columns = [
            ("ID", Align::Left),
            ("STATE", Align::Left),
            ("SIZE", Align::Right),
            ("REQUESTS", Align::Right),
            ("SOCKET", Align::Left),
        ];
        let mut table = Table::new(&columns, &["SOCKET", "REQUESTS", "SIZE"]);
        let rows = [
            ["vm1-root", "running", "20G", "184467440737", "/run/sidecore/vm1-root.sock"],
            ["tenant-42-of-rack-7-vm-17-root", "no space", "1024G", "7", "/run/sidecore/a.sock"],
            ["磁盘", "waiting", "-", "0", "-"],
        ];
        for row in rows {
            table.row(row.map(str::to_string).to_vec());
        }
        table
    }

    #[test]
    fn a_table_is_whole_where_nobody_looks_at_a_screen() {
        assert_eq!(
            disks().text(Room::Whole),
            "\
ID                              STATE      SIZE      REQUESTS  SOCKET
vm1-root                        running     20G  184467440737  /run/sidecore/vm1-root.sock
tenant-42-of-rack-7-vm-17-root  no space  1024G             7  /run/sidecore/a.sock
磁盘                            waiting       -             0  -
"
        );
        assert_eq!(disks().text(Room::Columns(120)), disks().text(Room::Whole));
    }

    #[test]
    fn text_is_shortened_first_and_columns_go_in_their_order() {
        assert_eq!(
            disks().text(Room::Columns(80)),
            "\
ID                              STATE      SIZE      REQUESTS  SOCKET
vm1-root                        running     20G  184467440737  /run/sid…oot.sock
tenant-42-of-rack-7-vm-17-root  no space  1024G             7  /run/sid…e/a.sock
磁盘                            waiting       -             0  -
"
        );
        assert_eq!(
            disks().text(Room::Columns(48)),
            "\
ID                              STATE      SIZE
vm1-root                        running     20G
tenant-42-of-rack-7-vm-17-root  no space  1024G
磁盘                            waiting       -
and 2 columns more: --wide
"
        );
        assert_eq!(
            disks().text(Room::Columns(40)),
            "\
ID                              STATE
vm1-root                        running
tenant-42-of-rack-7-vm-17-root  no space
磁盘                            waiting
and 3 columns more: --wide
"
        );
        assert_eq!(
            disks().lines(Room::Columns(30)),
            "\
ID                    STATE
vm1-root              running
tenant-42-…m-17-root  no space
磁盘                  waiting
"
        );
    }

    #[test]
    fn no_line_is_wider_than_the_room_and_rows_stand_below_one_another() {
        for room in 1..=130 {
            let text = disks().lines(Room::Columns(room));
            assert_eq!(text.lines().count(), 4, "{room}:\n{text}");
            assert!(text.lines().all(|line| columns(line) <= room), "{room}:\n{text}");
            let states = ["STATE", "running", "no space", "waiting"]
                .map(|word| text.lines().find_map(|line| Some(columns(&line[..line.find(word)?]))));
            let is_one = states.iter().all(|at| *at == states[0]);
            assert!(is_one || room < 24, "{room}:\n{text}");
        }
    }

    #[test]
    fn two_columns_of_one_name_go_together() {
        let columns = [("A", Align::Left), ("BYTES", Align::Right), ("BYTES", Align::Right)];
        let mut table = Table::new(&columns, &["BYTES"]);
        table.row(["a", "1", "2"].map(str::to_string).to_vec());
        assert_eq!(table.text(Room::Columns(10)), "A\na\nand 2 columns more: --wide\n");
    }

    #[test]
    fn what_would_steer_a_terminal_is_not_in_a_table() {
        let mut table = Table::new(&[("ID", Align::Left), ("SIZE", Align::Right)], &[]);
        table.row(vec!["a-long-name".into(), "1G".into()]);
        table.row(vec!["b\x1b[31m".into(), "1024G".into()]);
        let expected = "ID            SIZE\na-long-name     1G\nb?[31m       1024G\n";
        assert_eq!(table.text(Room::Whole), expected);
    }
}
