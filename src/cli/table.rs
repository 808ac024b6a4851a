//! Text in columns, and counted nouns.

use std::cmp::max;

/// The number of blanks between columns.
const PADDING: usize = 3;

/// Grows the widths of columns to fit the cells of a row.
pub(super) fn widen(widths: &mut [usize], cells: &[String]) {
    for (width, cell) in widths.iter_mut().zip(cells) {
        *width = max(*width, cell.chars().count());
    }
}

/// Returns a row as a line, without trailing blanks.
pub(super) fn line(cells: &[String], widths: &[usize]) -> String {
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<0$}", width + PADDING));
    format!("{}\n", padded.collect::<String>().trim_end())
}

/// Returns a count and its noun: `1 Pod`, `2 Pods`.
pub(super) fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
