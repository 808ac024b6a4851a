//! A headless Chromium, driven through the DevTools protocol over two pipes.
//!
//! * In: an address, expressions of JavaScript, keys. Out: their values, screenshots, the accessibility tree. Always: an
//!   exchange has a deadline; the browser has an empty profile, and ends with its handle.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::wait::eventually;

const DEADLINE: Duration = Duration::from_secs(30);
/// How long the page may take to show something.
const SHOWN: Duration = Duration::from_secs(20);

/// Without these, Chromium asks hosts on the internet for updates and experiments.
const QUIET: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
];

/// A browser with one page.
pub struct Browser {
    requests: ChildStdin,
    messages: BufReader<ChildStdout>,
    session: String,
    number: u64,
    _process: Child,
    _profile: TempDir,
}

// === impl Browser ===

impl Browser {
    /// Starts the browser at this path, with a blank page.
    pub async fn start(program: &Path) -> Result<Self> {
        let profile = tempfile::tempdir()?;
        // Chromium reads requests from file descriptor 3, and writes messages to 4.
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null"#])
            .arg(program)
            .args(QUIET)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut process = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let requests = process.stdin.take().context("no pipe for requests")?;
        let messages = BufReader::new(process.stdout.take().context("no pipe for messages")?);
        let mut browser =
            Self { requests, messages, session: String::new(), number: 0, _process: process, _profile: profile };
        let target = browser.send("Target.createTarget", json!({"url": "about:blank"})).await?;
        let target = target.get("targetId").cloned().context("no page")?;
        let attached = browser.send("Target.attachToTarget", json!({"targetId": target, "flatten": true})).await?;
        attached.get("sessionId").and_then(Value::as_str).context("no session")?.clone_into(&mut browser.session);
        browser.send("Accessibility.enable", json!({})).await?;
        // Otherwise scripts of `add_script` are lost when a navigation starts another renderer.
        browser.send("Page.enable", json!({})).await?;
        Ok(browser)
    }

    /// Opens an address.
    pub async fn open(&mut self, url: &str) -> Result<()> {
        let opened = self.send("Page.navigate", json!({"url": url})).await?;
        ensure!(opened.get("errorText").is_none(), "cannot open {url}: {opened}");
        self.shows("document.readyState === 'complete'").await
    }

    /// Runs a script in each document that is opened, before the scripts of the document.
    ///
    /// Returns the handle for [`Self::remove_script`].
    pub async fn add_script(&mut self, source: &str) -> Result<Value> {
        self.send("Page.addScriptToEvaluateOnNewDocument", json!({ "source": source })).await
    }

    pub async fn remove_script(&mut self, script: Value) -> Result<()> {
        self.send("Page.removeScriptToEvaluateOnNewDocument", script).await.map(drop)
    }

    /// Sets the size of the window, and whether the user prefers dark colors.
    pub async fn set_screen(&mut self, width: u32, height: u32, dark: bool) -> Result<()> {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.send("Emulation.setDeviceMetricsOverride", metrics).await?;
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.send("Emulation.setEmulatedMedia", features).await.map(drop)
    }

    /// Returns the value of an expression; the value of a promise, once it has one.
    pub async fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let request = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.send("Runtime.evaluate", request).await?;
        ensure!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        Ok(answer.pointer("/result/value").cloned().unwrap_or_default())
    }

    /// Waits until an expression is true.
    pub async fn shows(&mut self, expression: &str) -> Result<()> {
        let browser = tokio::sync::Mutex::new(self);
        eventually(SHOWN, expression, async || {
            let mut browser = browser.lock().await;
            let value = browser.evaluate(expression).await?;
            if value != json!(true) {
                let text = browser.evaluate("document.body.innerText").await?;
                bail!("it is {value}; the page has: {}", text.as_str().unwrap_or_default());
            }
            Ok(())
        })
        .await
    }

    /// Types a text into what has the focus.
    pub async fn type_text(&mut self, text: &str) -> Result<()> {
        self.send("Input.insertText", json!({ "text": text })).await.map(drop)
    }

    /// Presses a key, as a user without a mouse does.
    pub async fn press(&mut self, key: &str, code: u32) -> Result<()> {
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.send("Input.dispatchKeyEvent", event).await?;
        }
        Ok(())
    }

    /// Returns the role and the name of each node that assistive technology sees.
    pub async fn accessibility(&mut self) -> Result<Vec<(String, String)>> {
        let tree = self.send("Accessibility.getFullAXTree", json!({})).await?;
        let nodes = tree.get("nodes").and_then(Value::as_array).context("no accessibility tree")?;
        let text = |node: &Value, path: &str| node.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let seen = nodes.iter().filter(|node| node.get("ignored") != Some(&json!(true)));
        Ok(seen.map(|node| (text(node, "/role/value"), text(node, "/name/value"))).collect())
    }

    /// Returns the page as PNG, in base64.
    pub async fn screenshot(&mut self) -> Result<String> {
        let shot = self.send("Page.captureScreenshot", json!({"format": "png"})).await?;
        Ok(shot.get("data").and_then(Value::as_str).context("no screenshot")?.to_owned())
    }

    async fn send(&mut self, method: &str, params: Value) -> Result<Value> {
        self.number += 1;
        let mut request = json!({"id": self.number, "method": method, "params": params});
        if let (false, Some(fields)) = (self.session.is_empty(), request.as_object_mut()) {
            fields.insert("sessionId".to_owned(), json!(self.session));
        }
        let exchange = async {
            self.requests.write_all(format!("{request}\0").as_bytes()).await?;
            loop {
                let mut message = Vec::new();
                self.messages.read_until(0, &mut message).await?;
                ensure!(message.pop() == Some(0), "the browser has ended");
                let message: Value = serde_json::from_slice(&message)?;
                if message.get("id") == Some(&json!(self.number)) {
                    ensure!(message.get("error").is_none(), "{method}: {message}");
                    return Ok(message.get("result").cloned().unwrap_or_default());
                }
            }
        };
        timeout(DEADLINE, exchange).await.with_context(|| format!("{method}: no answer within {DEADLINE:?}"))?
    }
}
