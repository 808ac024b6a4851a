//! Checks of the page for people who use a keyboard, a screen reader, a phone, or large contrast.
//!
//! * In: a browser with the page. Out: an error that names what is wrong. The rules are those of WCAG 2.2, level AA:
//!   4.1.2 (names), 1.4.3 (contrast), 1.4.10 (reflow), 1.3.1 (headings and tables), 3.1.1 (language).

use anyhow::{Result, ensure};
use e2e::browser::Browser;
use serde_json::json;

/// The roles of nodes that a person operates, so that they need a name.
const CONTROLS: [&str; 9] =
    ["button", "combobox", "DisclosureTriangle", "form", "link", "region", "searchbox", "table", "textbox"];

/// Returns the texts whose contrast to their background is less than 4.5.
const LOW_CONTRAST: &str = r"
(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((it) => it / 255).map((it) => (it <= 0.03928 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const background = (node) => {
    for (let it = node; it; it = it.parentElement) {
      const color = rgba(getComputedStyle(it).backgroundColor);
      if (color[3] === 255) return color;
    }
    return rgba('white');
  };
  const low = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !node.checkVisibility() || node.closest('noscript, :disabled')) continue;
    const [one, other] = [rgba(getComputedStyle(node).color), background(node)].map(luminance);
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5) low.push(`${texts.currentNode.data.trim()}: ${contrast.toFixed(2)}`);
  }
  return low;
})()";

/// Returns the problems of the document's structure.
const STRUCTURE: &str = r"
(() => {
  const problems = [];
  if (!document.documentElement.lang) problems.push('no language');
  if (!document.title) problems.push('no title');
  const ids = [...document.querySelectorAll('[id]')].map((it) => it.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) problems.push(`id ${id} twice`);
  let level = 0;
  for (const heading of document.querySelectorAll('h1, h2, h3, h4')) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) problems.push(`${heading.innerText}: level ${next} after ${level}`);
    level = next;
  }
  for (const table of document.querySelectorAll('table')) {
    if (!table.caption || [...table.querySelectorAll('th')].some((it) => !it.scope)) problems.push('a table without names');
  }
  for (const input of document.querySelectorAll('input')) if (!input.labels.length) problems.push(`${input.id} has no label`);
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) problems.push(`the page is ${scrollWidth} pixels wide, the screen ${clientWidth}`);
  return problems;
})()";

/// Returns what is squeezed or broken, and markup that is none of the page.
///
/// A word is broken if its letters are on two lines. One that has more than 20 letters may be, and one in more than 40
/// characters without a space.
const LAYOUT: &str = r"
(() => {
  const problems = [];
  if (document.querySelector('main img, main script')) problems.push('a text of the server became markup');
  if (!document.title.includes('linkerd-operator')) problems.push(`the title is ${document.title}`);
  for (const it of document.querySelectorAll('main td, main li, .tile, .tile p, #banner *')) {
    if (!it.checkVisibility() || !it.innerText?.trim()) continue;
    const name = `${it.localName} ${it.innerText.slice(0, 40)}`;
    if (it.scrollWidth > it.clientWidth + 1 && getComputedStyle(it).display !== 'inline') problems.push(`overflows: ${name}`);
    if (it.localName === 'td' && it.getBoundingClientRect().width < 48) problems.push(`collapsed: ${name}`);
  }
  const texts = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (texts.nextNode()) {
    const node = texts.currentNode;
    if (!node.parentElement.checkVisibility()) continue;
    for (const { 0: word, index } of node.data.matchAll(/[\p{L}\p{N}]+/gu)) {
      const [before] = node.data.slice(0, index).match(/\S*$/);
      const [after] = node.data.slice(index).match(/^\S*/);
      if (word.length > 20 || before.length + after.length > 40) continue;
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      const tops = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)));
      if (tops.size > 1) problems.push(`broken: ${word}`);
    }
  }
  return problems;
})()";

pub(super) async fn check(browser: &mut Browser) -> Result<()> {
    for (name, problems) in [("structure", STRUCTURE), ("contrast", LOW_CONTRAST), ("layout", LAYOUT)] {
        let found = browser.evaluate(problems).await?;
        ensure!(found == json!([]), "{name}: {found}");
    }
    let nodes = browser.accessibility().await?;
    let controls: Vec<_> = nodes.iter().filter(|(role, _)| CONTROLS.contains(&role.as_str())).collect();
    ensure!(controls.len() > 10, "only {} controls are seen", controls.len());
    let nameless: Vec<_> = controls.iter().filter(|(_, name)| name.trim().is_empty()).collect();
    ensure!(nameless.is_empty(), "without a name: {nameless:?}");
    Ok(())
}
