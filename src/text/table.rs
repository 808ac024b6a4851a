//! Text in columns.

use std::cmp::max;

use super::printable;

/// The number of blanks between columns.
const PADDING: usize = 3;

/// Grows the widths of columns to fit the cells of a row.
pub fn widen(widths: &mut [usize], cells: &[String]) {
    for (width, cell) in widths.iter_mut().zip(cells) {
        *width = max(*width, printable(cell).chars().count());
    }
}

/// Returns a row as one line, without trailing blanks, whatever its cells contain.
pub fn line(cells: &[String], widths: &[usize]) -> String {
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{:<1$}", printable(cell), width + PADDING));
    format!("{}\n", padded.collect::<String>().trim_end())
}
