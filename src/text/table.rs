//! Text in columns.

use std::cmp::max;

use super::printable;

/// The number of blanks between columns.
const PADDING: usize = 3;
/// The maximum number of characters of a cell. Tenants write some of the texts, and Rust pads to at most 65,535.
const LONGEST: usize = 1_000;

fn shown(cell: &str) -> String {
    printable(cell).chars().take(LONGEST).collect()
}

/// Grows the widths of columns to fit the cells of a row.
pub fn widen(widths: &mut [usize], cells: &[String]) {
    for (width, cell) in widths.iter_mut().zip(cells) {
        *width = max(*width, shown(cell).chars().count());
    }
}

/// Returns a row as one line, without trailing blanks, whatever its cells contain.
pub fn line(cells: &[String], widths: &[usize]) -> String {
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{:<1$}", shown(cell), width + PADDING));
    format!("{}\n", padded.collect::<String>().trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_of_any_length_is_printed_and_cut() {
        let cells = ["x".repeat(200_000), "b".to_owned()];
        let mut widths = [0, 0];
        widen(&mut widths, &cells);
        assert_eq!(line(&cells, &widths), format!("{}   b\n", "x".repeat(1_000)));
    }
}
