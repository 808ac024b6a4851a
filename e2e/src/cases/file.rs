//! Reads the files of the table, up to the texts that differ between two cases in one cluster.
//!
//! * In: a file, and `base.yaml`. Out: a [`Row`] per row and value of `each`, with the patches applied.
//! * Always: a field that the format does not have is an error.

use std::{collections::BTreeMap, fs, net::SocketAddr, path::Path};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use tonic::Code;

use super::{
    Case, Expected, Method, OWN_NAME, endpoint,
    flag::{self, Flags},
    object::{self, NAMESPACE, ObjectPatches},
    patch::{patch, replace_texts},
    profile,
};
use crate::{
    discovery::token,
    oracle::{Answer, ProfileAnswer, Request},
};

/// The flags of a file that names none.
const CHART: &str = "chart";
/// The name of a value of `each` that is not an object.
const EACH: &str = "each";

/// What all files share.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Base {
    /// Sets of flags by name.
    flags: BTreeMap<String, Vec<String>>,
    /// The defaults of each kind of object.
    kinds: Map<String, Value>,
    /// Expected messages by name, for each method.
    expected: Templates,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Templates {
    get: Map<String, Value>,
    profile: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    flags: Option<String>,
    /// Patches of the defaults of each kind.
    #[serde(default)]
    kinds: Map<String, Value>,
    /// The objects of every row.
    #[serde(default)]
    objects: ObjectPatches,
    /// Patches of the expected messages.
    #[serde(default)]
    expected: Map<String, Value>,
    rows: Vec<Value>,
}

/// A row without `each`.
#[derive(Deserialize)]
struct RowFields {
    name: String,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    objects: ObjectPatches,
    /// The objects of each other cluster that is linked.
    #[serde(default)]
    clusters: BTreeMap<String, ObjectPatches>,
    linkerd: Option<u32>,
    in_process_only: Option<String>,
    /// Several requests about the same objects.
    requests: Option<Vec<Value>>,
    /// The fields of the only request, or those that all requests share.
    #[serde(flatten)]
    request: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// A Service and its port: `web:80`.
    service: Option<String>,
    path: Option<String>,
    /// The node of a client, which the token names as the injector writes it.
    node: Option<String>,
    /// The namespace of a client, likewise.
    namespace: Option<String>,
    token: Option<String>,
    /// The only code, and its text.
    refused: Option<BTreeMap<String, String>>,
    /// Expected endpoints by address.
    endpoints: Option<BTreeMap<String, Value>>,
    /// The expected profile.
    profile: Option<Value>,
}

/// A request with its objects and its answer, before names and addresses are replaced.
pub(super) struct Row {
    name: String,
    method: Method,
    flags: Flags,
    linkerd: Option<u32>,
    in_process_only: Option<String>,
    objects: Value,
    /// The objects of other clusters, by the name of the cluster.
    clusters: Value,
    /// The path, the token, and `refused` or the message.
    request: Value,
}

pub(super) fn read(base: &Base, method: Method, file: &Path) -> Result<Vec<Row>> {
    let document: Document = yaml(file)?;
    let topic = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let folder = match method {
        Method::Get => "get",
        Method::GetProfile => "profile",
    };
    let named = document.flags.as_deref().unwrap_or(CHART);
    let flags = base.flags.get(named).with_context(|| format!("no flags have the name {named:?}"))?;
    let (mut kinds, templates) = (Value::Object(base.kinds.clone()), base.expected.of(method));
    patch(&mut kinds, &Value::Object(document.kinds));
    let mut templates = Value::Object(templates.clone());
    patch(&mut templates, &Value::Object(document.expected));
    let (Value::Object(kinds), Value::Object(templates)) = (kinds, templates) else { bail!("not objects") };
    let shared = object::with(ObjectPatches::new(), &kinds, &document.objects)?;
    let mut rows = Vec::new();
    for row in document.rows {
        for (which, row) in each(row)? {
            let fields: RowFields = serde_json::from_value(row.clone()).with_context(|| format!("the row {row}"))?;
            let name = format!("{folder}/{topic}: {}{which}", fields.name);
            let read = || {
                let flags = flag::with(&flag::with(&Flags::new(), flags)?, &fields.flags)?;
                let objects = object::with(shared.clone(), &kinds, &fields.objects)?;
                let mut clusters = Map::new();
                for (name, patches) in &fields.clusters {
                    let objects = object::with(ObjectPatches::new(), &kinds, patches)?;
                    clusters.insert(name.clone(), json!(objects.values().collect::<Vec<_>>()));
                }
                let several = || "its objects are in several clusters".to_owned();
                let in_process_only = fields.in_process_only.clone().or_else(|| (!clusters.is_empty()).then(several));
                let requests = fields.requests.clone().unwrap_or_else(|| vec![json!({})]);
                let of = |request: &Value| {
                    let mut whole = Value::Object(fields.request.clone());
                    patch(&mut whole, request);
                    let request = requested(&whole, method, &flags, &templates)?;
                    Ok(Row {
                        name: name.clone(),
                        method,
                        flags: flags.clone(),
                        linkerd: fields.linkerd,
                        in_process_only: in_process_only.clone(),
                        objects: json!(objects.values().collect::<Vec<_>>()),
                        clusters: Value::Object(clusters.clone()),
                        request,
                    })
                };
                requests.iter().map(of).collect::<Result<Vec<Row>>>()
            };
            rows.extend(read().with_context(|| name.clone())?);
        }
    }
    Ok(rows)
}

fn yaml<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let failed = || format!("reading {}", file.display());
    let text = fs::read_to_string(file).with_context(failed)?;
    // By way of JSON, so that numbers and nulls have one form.
    let value: Value = serde_yaml::from_str(&text).with_context(failed)?;
    serde_json::from_value(value).with_context(failed)
}

/// Replaces `<each>`, or the `<NAME>` of each field, by the values of `each`. Returns the rows with texts that
/// distinguish them.
fn each(mut row: Value) -> Result<Vec<(String, Value)>> {
    let Some(values) = row.as_object_mut().and_then(|row| row.remove(EACH)) else {
        return Ok(vec![(String::new(), row)]);
    };
    let values = values.as_array().with_context(|| format!("`each` is not a list in {row}"))?;
    ensure!(!values.is_empty(), "`each` is empty in {row}");
    let of = |value: &Value| {
        let named = match value {
            Value::Object(named) => named.clone(),
            other => Map::from_iter([(EACH.to_owned(), other.clone())]),
        };
        let filled = replace_texts(&row, &|text: &str| {
            let mut filled = text.to_owned();
            for (name, value) in &named {
                let place = format!("<{name}>");
                if text == place {
                    return value.clone();
                }
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                filled = filled.replace(&place, &value);
            }
            Value::String(filled)
        });
        (format!(" ({value})"), filled)
    };
    Ok(values.iter().map(of).collect())
}

/// The path, the token and the expected message of a request.
fn requested(request: &Value, method: Method, flags: &Flags, templates: &Map<String, Value>) -> Result<Value> {
    let asked: Asked = serde_json::from_value(request.clone()).with_context(|| format!("the request {request}"))?;
    let domain = flags.get("cluster-domain").context("no cluster domain")?;
    let path = match (asked.service, asked.path) {
        (Some(service), None) => {
            let (service, port) = service.split_once(':').with_context(|| format!("{service:?} has no port"))?;
            format!("{service}.{NAMESPACE}.svc.{domain}:{port}")
        }
        (None, Some(path)) => path,
        _ => bail!("a request has either `service` or `path`: {request}"),
    };
    let token = match (asked.token, asked.node, asked.namespace) {
        (None, None, None) => String::new(),
        (Some(token), None, None) => token,
        (None, node, namespace) => token(&namespace.unwrap_or_else(|| NAMESPACE.to_owned()), &node.unwrap_or_default()),
        _ => bail!("a request has either `token`, or `node` and `namespace`: {request}"),
    };
    let expected = match (method, asked.refused, asked.endpoints, asked.profile) {
        (_, Some(refused), None, None) => json!({ "refused": refused }),
        (Method::Get, None, Some(endpoints), None) => {
            let whole = endpoints.iter().map(|(at, fields)| Ok((at.clone(), of_template(templates, fields)?)));
            json!({"endpoints": whole.collect::<Result<Map<_, _>>>()?})
        }
        (Method::GetProfile, None, None, Some(profile)) => json!({"profile": of_template(templates, &profile)?}),
        _ => bail!("a request has one expected answer: {request}"),
    };
    Ok(json!({"path": path, "token": token, "expected": expected}))
}

/// Replaces the name of a message, or its field `is`, by the message.
fn of_template(templates: &Map<String, Value>, fields: &Value) -> Result<Value> {
    let mut fields = fields.clone();
    let name = match &mut fields {
        Value::String(name) => std::mem::take(name),
        Value::Object(fields) => match fields.remove("is") {
            Some(Value::String(name)) => name,
            _ => bail!("an expected message without `is`: {fields:?}"),
        },
        other => bail!("an expected message is {other}"),
    };
    let mut whole = templates.get(&name).with_context(|| format!("no message has the name {name:?}"))?.clone();
    if fields.is_object() {
        patch(&mut whole, &fields);
    }
    Ok(whole)
}

// === impl Base ===

impl Base {
    pub(super) fn read(file: &Path) -> Result<Self> {
        yaml(file)
    }
}

impl Templates {
    fn of(&self, method: Method) -> &Map<String, Value> {
        match method {
            Method::Get => &self.get,
            Method::GetProfile => &self.profile,
        }
    }
}

// === impl Row ===

impl Row {
    /// The same text for rows with the same objects.
    pub(super) fn objects_as_text(&self) -> String {
        format!("{} {}", self.objects, self.clusters)
    }

    /// Returns the case. With a number, its names and addresses differ from those of other numbers.
    pub(super) fn case(&self, number: Option<usize>) -> Result<Case> {
        self.read(number).with_context(|| self.name.clone())
    }

    fn read(&self, number: Option<usize>) -> Result<Case> {
        let own = |value: &Value| match number {
            None => value.clone(),
            Some(number) => replace_texts(value, &|text| Value::String(numbered(text, number))),
        };
        let request = own(&self.request);
        let complete = |objects: &Value| {
            let objects = own(objects);
            objects.as_array().context("objects")?.iter().cloned().map(object::complete).collect::<Result<Vec<_>>>()
        };
        let clusters = self.clusters.as_object().context("clusters")?.iter();
        let text = |name: &str| request.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let expected = request.get("expected").context("an expected answer")?;
        Ok(Case {
            name: self.name.clone(),
            flags: self.flags.iter().map(|(name, value)| format!("--{name}={value}")).collect(),
            settings: flag::settings(&self.flags)?,
            objects: complete(&self.objects)?,
            clusters: clusters.map(|(name, objects)| Ok((name.clone(), complete(objects)?))).collect::<Result<_>>()?,
            request: Request { path: text("path"), token: text("token") },
            expected: answer(self.method, expected)?,
            linkerd: self.linkerd,
            in_process_only: self.in_process_only.clone(),
        })
    }
}

/// The name or address in the cluster of this number.
fn numbered(text: &str, number: usize) -> String {
    let (high, low) = (number / 256, number % 256);
    text.replace(OWN_NAME, &format!("c{number}-"))
        .replace("192.0.2.", &format!("100.{}.{low}.", 64 + high))
        .replace("198.51.100.", &format!("172.{}.{low}.", 16 + high))
        .replace("2001:db8::", &format!("2001:db8:{number:x}::"))
}

fn answer(method: Method, expected: &Value) -> Result<Expected> {
    if let Some(refused) = expected.get("refused").and_then(Value::as_object) {
        let mut refused = refused.iter();
        let (Some((code, text)), None) = (refused.next(), refused.next()) else { bail!("one code: {expected}") };
        let (code, text) = (self::code(code)?, text.as_str().unwrap_or_default().to_owned());
        return Ok(match method {
            Method::Get => Expected::Get(Answer::Refused(code, text)),
            Method::GetProfile => Expected::Profile(ProfileAnswer::Refused(code, text)),
        });
    }
    if let Some(fields) = expected.get("profile") {
        return Ok(Expected::Profile(ProfileAnswer::Profile(Box::new(profile::profile(fields)?))));
    }
    let endpoints = expected.get("endpoints").and_then(Value::as_object).context("endpoints")?;
    let endpoints = endpoints.iter().map(|(address, fields)| {
        let address: SocketAddr =
            address.parse().with_context(|| format!("{address:?} is not an address and a port"))?;
        Ok((address, endpoint::endpoint(address, fields)?))
    });
    Ok(Expected::Get(Answer::Endpoints(endpoints.collect::<Result<_>>()?)))
}

fn code(name: &str) -> Result<Code> {
    let known = [Code::InvalidArgument, Code::NotFound, Code::FailedPrecondition, Code::Unknown];
    let found = known.into_iter().find(|code| format!("{code:?}") == name);
    found.with_context(|| format!("no code has the name {name:?}"))
}
