//! Tests of kubeconfigs, and of what people read if one of them cannot be used.

use std::{fs, net::Ipv4Addr, path::Path, sync::Arc};

use anyhow::Error;
use k8s_openapi::ByteString;
use kube::{Client, Config, config::Kubeconfig};
use prometheus::Registry;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use secrecy::ExposeSecret;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use super::{
    READ_TIMEOUT, client, config, describe, embedded, impersonating, kubeconfig, proxy::ProxyEnvironment,
    with_deadlines,
};

/// A certificate of X.509 version 1, as `openssl x509 -req` of OpenSSL 3.0 issues it, and its key.
const VERSION_1: &str = "-----BEGIN CERTIFICATE-----
MIIBFzCBvwIUWRHpI6hdTWBM1ryLgW8kZfapK1swCgYIKoZIzj0EAwIwDjEMMAoG
A1UEAwwDZGV2MCAXDTI2MTEyNzExMzUxMFoYDzIxMjYxMTAzMTEzNTEwWjAOMQww
CgYDVQQDDANkZXYwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARYeenBmkSJm4LL
Co89q1t06jj5fSFlJhNtnHZRJ3Ik4nuKzPjQdmErlXo6m3R3xcrGr0G5qkr9e2Dd
6ToajN4FMAoGCCqGSM49BAMCA0cAMEQCIDDSn7wEuKcrKs/iIK72i2/9N43mKyWP
AQMns0gOCv+sAiAAqofnG+b1Egh9O9ivs/nhrQ7pEWP16j4g/5Ftl82nzg==
-----END CERTIFICATE-----
";
const KEY_OF_VERSION_1: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgGHdJ7RDUIqYjOdIc
bmiyZXqRoXD2qxLDkyK/OTSN6SOhRANCAARYeenBmkSJm4LLCo89q1t06jj5fSFl
JhNtnHZRJ3Ik4nuKzPjQdmErlXo6m3R3xcrGr0G5qkr9e2Dd6ToajN4F
-----END PRIVATE KEY-----
";

/// A kubeconfig with these fields of the user and of the cluster.
fn of(user: &str, cluster: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: east\n\
         contexts: [{{name: east, context: {{cluster: east, user: reader}}}}]\n\
         clusters: [{{name: east, cluster: {{{cluster}}}}}]\n\
         users: [{{name: reader, user: {{{user}}}}}]\n"
    )
}

fn of_user(user: &str) -> String {
    of(user, "server: \"https://east.example:6443\"")
}

fn of_cluster(field: &str) -> String {
    of("", &format!("server: \"https://east.example:6443\", {field}"))
}

fn data(pem: &str) -> String {
    let data = serde_json::to_value(ByteString(pem.into())).unwrap();
    data.as_str().unwrap().to_owned()
}

fn configured(text: &str) -> Result<Config, Error> {
    let file = Kubeconfig::from_yaml(text).unwrap();
    kubeconfig::config_of(file, None, &ProxyEnvironment::default()).map(with_deadlines)
}

fn connected(text: &str) -> Result<Client, Error> {
    client(configured(text)?, &Registry::new())
}

fn refusal(text: &str) -> String {
    match connected(text) {
        Ok(_) => panic!("it is accepted: {text}"),
        Err(error) => describe(&*error),
    }
}

fn embedded_refusal(text: &str) -> String {
    match embedded(text) {
        Ok(_) => panic!("it is accepted: {text}"),
        Err(error) => describe(&*error),
    }
}

#[tokio::test]
async fn an_untrusted_kubeconfig_that_runs_programs_or_reads_files_is_refused() {
    for (text, field) in [
        (of_user("exec: {command: sh, apiVersion: client.authentication.k8s.io/v1}"), "exec"),
        (of_user("auth-provider: {name: gcp, config: {}}"), "auth-provider"),
        (of_user("tokenFile: /var/run/secrets/token"), "tokenFile"),
        (of_user("client-certificate: /etc/passwd"), "client-certificate"),
        (of_user("client-key: /etc/passwd"), "client-key"),
        (of_cluster("certificate-authority: /etc/passwd"), "certificate-authority"),
    ] {
        let error = embedded(&text).err().unwrap().to_string();
        assert!(error.starts_with(&format!("the field {field} is refused")), "{error}");
    }
    let config = configured(&of_user("token: secret-token")).unwrap();
    assert_eq!(config.cluster_url, "https://east.example:6443/");
    assert_eq!((config.read_timeout, config.default_retry), (Some(READ_TIMEOUT), false));
    embedded(&of_user("token: secret-token")).unwrap();
}

/// The parser's own limits are higher: each of these took a second.
#[tokio::test]
async fn an_untrusted_kubeconfig_that_is_too_large_or_becomes_so_by_aliases_is_refused() {
    let nested = |depth: usize| {
        let levels =
            (1..=depth).map(|level| format!("x{level}: &x{level} [{}]\n", format!("*x{},", level - 1).repeat(9)));
        "x0: &x0 [1]\n".to_owned() + &levels.collect::<String>()
    };
    let text = of_user("token: abc");
    for too_large in [
        text.clone() + &nested(8),
        format!("x: &x {}\ny: [{}]\n{text}", "x".repeat(200_000), "*x,".repeat(6)),
        text.replace(
            "contexts: [",
            &format!("contexts: [{}", "{name: x, context: {cluster: a, user: b}},".repeat(2_000)),
        ),
        format!("---\n{text}").repeat(500),
    ] {
        let begun = std::time::Instant::now();
        let error = embedded(&too_large).err().unwrap().to_string();
        assert!(error.starts_with("it is too large: it may have 10000 values"), "{error}");
        assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    embedded(&(text.clone() + &nested(3))).unwrap();
    embedded(&format!("x: {}\n{text}", "x".repeat(1_000_000))).unwrap();
    embedded(&format!("---\n{text}").repeat(20)).unwrap();
}

#[tokio::test]
async fn the_error_of_a_kubeconfig_that_cannot_be_used_does_not_quote_it() {
    let without_context = "apiVersion: v1\nkind: Config\nusers: [{name: a, user: {token: secret-token}}]\n";
    for text in [
        "secret-token: [",
        without_context,
        &of_user("client-key-data: secret-token, client-certificate-data: secret-token"),
        &of_user("token: [secret-token]"),
        &of_user("token: \"secret-token\\0\""),
        &of("", "server: \"secret-token:x@/\""),
        &of_cluster("proxy-url: \"http://user:secret-token@\""),
        &of_cluster("certificate-authority-data: secret-token"),
        &of_cluster(&format!("certificate-authority-data: {}", data("-----BEGIN secret-token"))),
    ] {
        let error = embedded(text).err().map(|error| format!("{error:#}"));
        assert!(error.as_ref().is_some_and(|error| !error.contains("secret-token")), "{text}: {error:?}");
    }
}

#[tokio::test]
async fn a_token_is_used_without_the_white_space_around_it() {
    for token in ["abc", "abc\\n", "abc\\r\\n", " abc\\t"] {
        let text = of_user(&format!("token: \"{token}\""));
        let config = configured(&text).unwrap();
        assert_eq!(config.auth_info.token.unwrap().expose_secret(), "abc", "{token:?}");
        connected(&text).unwrap();
    }
}

#[tokio::test]
async fn an_empty_field_is_as_an_unset_one() {
    let text = of(
        "token: \"\", tokenFile: \"\", client-certificate: \"\", client-key-data: \"\", as: \"\"",
        "server: \"https://east.example\", certificate-authority-data: \"\", certificate-authority: \"\", proxy-url: \"\", \
         tls-server-name: \"\"",
    );
    let config = configured(&text).unwrap();
    assert!(config.auth_info.token.is_none() && config.root_cert.is_none() && config.proxy_url.is_none());
    assert_eq!(config.auth_info.impersonate, None);
    // Only the missing credentials are a problem, as in the next test.
    embedded(&text.replace("token: \"\"", "token: abc")).unwrap();
}

#[tokio::test]
async fn the_user_of_a_context_must_exist_and_that_of_a_linked_cluster_must_have_credentials() {
    let missing = of_user("token: abc").replace("user: reader}", "user: writer}");
    let expected = "its context \"east\" names user \"writer\", which the kubeconfig does not have";
    assert_eq!(refusal(&missing), expected);
    assert_eq!(embedded_refusal(&missing), expected);
    let missing = of_user("token: abc").replace("cluster: east,", "cluster: west,");
    let expected = "its context \"east\" names cluster \"west\", which the kubeconfig does not have";
    assert_eq!(embedded_refusal(&missing), expected);
    let none = "user \"reader\" has no credentials: write a token, or a client certificate and its key";
    for user in ["", "token: \"\"", "username: admin", "as: admin"] {
        assert_eq!(embedded_refusal(&of_user(user)), none, "{user}");
        connected(&of_user(user)).unwrap();
    }
    let unnamed = of_user("token: abc").replace(", user: reader}", "}");
    let expected = "its context \"east\" names no user: name one with a token, or a client certificate and its key";
    assert_eq!(embedded_refusal(&unnamed), expected);
    assert_eq!(embedded_refusal(&of_user("token: abc").replace("user: reader}", "user: \"\"}")), expected);
    connected(&unnamed).unwrap();
    // A proxy in front of the API server may accept it.
    embedded(&of_user("username: admin, password: abc")).unwrap();
    // An API server serves HTTPS only, so this is another program, which adds the credentials.
    embedded(&of("", "server: \"http://127.0.0.1:8001\"")).unwrap();
}

#[tokio::test]
async fn a_value_that_cannot_be_used_is_refused_in_a_sentence() {
    let control = "of user \"reader\" has a line break or another control character, which an HTTP header cannot have";
    for (user, expected) in [
        ("token: \"a\\nb\"", format!("token {control}")),
        ("token: \"a\\rb\"", format!("token {control}")),
        ("token: \"a\\0\"", format!("token {control}")),
        ("token: \"a\\x7f\"", format!("token {control}")),
        ("token: \"\\n \"", "the token of user \"reader\" has only white space".to_owned()),
        ("token: a, as: \"a\\nb\"", format!("as {control}")),
        ("token: a, as-uid: \"a\\0b\"", format!("as-uid {control}")),
        ("token: a, as: a, as-groups: [b, \"c\\n\"]", format!("as-groups {control}")),
        ("token: a, as: a, as-user-extra: {k: [\"c\\n\"]}", format!("as-user-extra {control}")),
        ("as: jörg", "as of user \"reader\" has characters that are not ASCII".to_owned()),
    ] {
        assert_eq!(refusal(&of_user(user)), expected, "{user}");
    }
    for (server, expected) in [
        ("127.0.0.1:6443", "has no scheme: write https://HOST:PORT"),
        ("east.example", "has no scheme: write https://HOST:PORT"),
        ("/api", "has no scheme: write https://HOST:PORT"),
        ("ftp://east.example", "has the scheme \"ftp\": use https or http"),
        ("https://", "is not a URL: write https://HOST:PORT"),
        ("https:///api", "is not a URL: write https://HOST:PORT"),
        ("https://:6443", "has no host: write https://HOST:PORT"),
        ("https://east example", "is not a URL: write https://HOST:PORT"),
        ("https://east:x", "has a port that is not a number from 1 to 65535"),
        ("https://east:65536", "has a port that is not a number from 1 to 65535"),
        ("https://east:0", "has a port that is not a number from 1 to 65535"),
        ("https://a:b@east", "has a user: write it as the user of the kubeconfig"),
    ] {
        let error = refusal(&of("", &format!("server: \"{server}\"")));
        assert_eq!(error, format!("server of cluster \"east\" {expected}"), "{server}");
    }
    assert_eq!(refusal(&of("", "server: \"\"")), "cluster \"east\" has no server");
    let long = refusal(&of("", &format!("server: \"https://east/{}\"", "a".repeat(70_000))));
    assert_eq!(long, "server of cluster \"east\" is longer than 2048 bytes");
    let error = refusal(&of_cluster("tls-server-name: \"a b\""));
    assert_eq!(error, "tls-server-name of cluster \"east\" is no name of a host");
    let error = refusal(&of_cluster("proxy-url: \"proxy.example:3128\""));
    assert_eq!(error, "proxy-url of cluster \"east\" has no scheme: write http://HOST:PORT");
    let name = "n".repeat(1000);
    let error = refusal(&of_user("").replace("cluster: east,", &format!("cluster: {name},")));
    assert!(error.len() < 300 && error.starts_with("its context \"east\" names cluster \"nnn"), "{error}");
}

#[tokio::test]
async fn the_url_of_a_server_that_kubectl_accepts_is_used() {
    for (server, expected) in [
        ("https://east.example:6443\\n", "https://east.example:6443/"),
        ("HTTPS://east.example", "https://east.example/"),
        ("http://127.0.0.1:8001", "http://127.0.0.1:8001/"),
        ("https://[::1]:6443", "https://[::1]:6443/"),
        ("https://east.example:", "https://east.example:/"),
        ("https://rancher.example/k8s/clusters/c-1", "https://rancher.example/k8s/clusters/c-1"),
    ] {
        let text = of("", &format!("server: \"{server}\""));
        assert_eq!(configured(&text).unwrap().cluster_url, expected, "{server}");
        connected(&text).unwrap();
    }
}

fn self_signed(name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_is_refused_with_its_field() {
    let ((certificate, key), (_, other_key)) = (self_signed("one"), self_signed("two"));
    let user = |certificate: &str, key: &str| {
        of_user(&format!("client-certificate-data: {}, client-key-data: {}", data(certificate), data(key)))
    };
    connected(&user(&certificate, &key)).unwrap();
    let certificate_field = "client-certificate-data of user \"reader\"";
    let key_field = "client-key-data of user \"reader\"";
    for (text, expected) in [
        (
            user(VERSION_1, KEY_OF_VERSION_1),
            format!(
                "the client certificate ({certificate_field}) is X.509 version 1, which this program does not support: \
                 issue one of version 3"
            ),
        ),
        (
            user(&certificate, &other_key),
            format!("{key_field} does not belong to the certificate of client-certificate"),
        ),
        (user("garbage", &key), format!("{certificate_field} has no certificate in PEM")),
        (
            user(&certificate, "garbage"),
            format!("{key_field} has no private key in PEM (PKCS#8, PKCS#1 or SEC1, without a password)"),
        ),
        (
            of_user(&format!("client-certificate-data: {}", data(&certificate))),
            format!("{certificate_field} is set, but there is no client-key"),
        ),
        (
            of_user(&format!("client-key-data: {}", data(&key))),
            format!("{key_field} is set, but there is no client-certificate"),
        ),
        (of_user("client-certificate-data: \"%\", client-key-data: YQ=="), format!("{certificate_field} is not base64")),
        (
            of_cluster(&format!("certificate-authority-data: {}", data("garbage"))),
            "certificate-authority-data of cluster \"east\" has no certificate in PEM".to_owned(),
        ),
        (
            of_cluster("certificate-authority: /nonexistent/ca.crt"),
            "cannot read /nonexistent/ca.crt, the certificate-authority of cluster \"east\": No such file or directory \
             (os error 2)"
                .to_owned(),
        ),
    ] {
        assert_eq!(refusal(&text), expected);
    }
    // Go ignores line breaks in base64.
    let encoded = data(&certificate);
    let (first, rest) = encoded.split_at(64);
    let folded = format!("{first}\\n{rest}");
    connected(&of_cluster(&format!("certificate-authority-data: \"{folded}\\n\""))).unwrap();
}

#[test]
fn files_of_a_list_that_do_not_exist_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("users"), "users: [{name: reader, user: {token: first}}]\n").unwrap();
    fs::write(path("clusters"), of_user("token: second")).unwrap();
    let merged = |names: &[&str]| {
        let paths = std::env::join_paths(names.iter().map(|name| folder.path().join(name))).unwrap();
        kubeconfig::merged(&paths)
    };
    let file = merged(&["missing", "users", "missing-too", "clusters"]).unwrap();
    let config = kubeconfig::config_of(file, None, &ProxyEnvironment::default()).unwrap();
    assert_eq!(config.auth_info.token.unwrap().expose_secret(), "first", "the first file wins");
    let error = merged(&["missing", "missing-too"]).unwrap_err().to_string();
    let (one, two) = (path("missing"), path("missing-too"));
    let expected = format!("KUBECONFIG names no file that exists: {}, {}", one.display(), two.display());
    assert_eq!(error, expected);
    fs::write(path("broken"), "users:\n- name: a\n  user: {token: [top-secret]}\n").unwrap();
    let error = describe(&*merged(&["clusters", "broken"]).unwrap_err());
    let expected = format!("KUBECONFIG: cannot read the kubeconfig {}: it is invalid", path("broken").display());
    assert!(error.starts_with(&expected) && !error.contains("top-secret"), "{error}");
}

#[test]
fn an_empty_path_names_no_file() {
    let source = |path| kubeconfig::read(path).ok().flatten().map(|(_, source)| source);
    assert_eq!(source(Some(Path::new(""))), source(None));
}

#[test]
fn a_file_that_is_named_must_exist() {
    let error = describe(&*config(Some(Path::new("/nonexistent/config"))).unwrap_err());
    assert_eq!(error, "cannot read the kubeconfig /nonexistent/config: No such file or directory (os error 2)");
}

#[test]
fn a_name_to_impersonate_that_cannot_be_sent_is_refused() {
    let config = configured(&of_user("token: a")).unwrap();
    let error = impersonating(config.clone(), Some("a\nb"), &[]).unwrap_err().to_string();
    assert!(error.starts_with("as of the command line has a line break"), "{error}");
    assert!(impersonating(config, Some("dev"), &["system:masters".to_owned()]).is_ok());
}

#[tokio::test]
async fn an_exec_plugin_that_fails_is_named_without_its_environment_and_output() {
    let exec = |fields: &str| {
        refusal(&of_user(&format!(
            "exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, \
             env: [{{name: AWS_SECRET_ACCESS_KEY, value: s3cr3t}}], {fields}}}"
        )))
    };
    let failed = "cannot create a client of the API server from its configuration: the exec plugin";
    assert_eq!(
        exec("command: not-installed-anywhere, installHint: \"brew install it\\n\""),
        format!(
            "{failed} \"not-installed-anywhere\" of the kubeconfig cannot be started: No such file or directory (os \
             error 2): brew install it"
        )
    );
    assert_eq!(
        exec("command: sh, args: [-c, \"echo s3cr3t; exit 3\"]"),
        format!("{failed} \"sh\" of the kubeconfig failed with exit status: 3: run it by hand to see why")
    );
    assert_eq!(
        exec("command: sh, args: [-c, \"echo [s3cr3t\"]"),
        format!("{failed} \"sh\" of the kubeconfig printed something else than credentials")
    );
    let token = "command: printf, args: ['{\"status\": {\"token\": \"s3cr3t%s\"}}', '\\n']";
    assert_eq!(exec(token), "a credential of the kubeconfig cannot be used: check what its exec plugin prints");
}

/// kubectl 1.26 removed the plugins gcp and azure.
#[tokio::test]
async fn an_auth_provider_without_usable_credentials_is_named_with_what_replaces_it() {
    let failed = "cannot create a client of the API server from its configuration: the auth-provider";
    let provider = |fields: &str| refusal(&of_user(&format!("auth-provider: {{{fields}}}")));
    let gcp = format!(
        "{failed} \"gcp\" of the kubeconfig gives no credentials: kubectl 1.26 has removed it, so install \
         gke-gcloud-auth-plugin and run gcloud container clusters get-credentials again"
    );
    assert_eq!(provider("name: gcp, config: {}"), gcp);
    assert_eq!(provider("name: gcp, config: {cmd-path: not-installed-anywhere, cmd-args: s3cr3t}"), gcp);
    assert_eq!(provider("name: gcp, config: {cmd-path: sh, cmd-args: s3cr3t}"), gcp);
    assert_eq!(
        provider("name: azure, config: {apiserver-id: a}"),
        format!(
            "{failed} \"azure\" of the kubeconfig gives no credentials: kubectl 1.26 has removed it, so install \
             kubelogin and run kubelogin convert-kubeconfig"
        )
    );
    assert_eq!(
        provider("name: oidc, config: {refresh-token: s3cr3t}"),
        format!(
            "{failed} \"oidc\" of the kubeconfig gives no credentials: it has no id-token, and this program requests \
             none, so use the exec plugin kubelogin"
        )
    );
    assert_eq!(
        provider("name: other, config: {a: s3cr3t}"),
        format!("{failed} \"other\" of the kubeconfig gives no credentials: use an exec plugin")
    );
    connected(&of_user("auth-provider: {name: oidc, config: {id-token: a}}")).unwrap();
    connected(&of_user("auth-provider: {name: gcp, config: {cmd-path: printf, cmd-args: token}}")).unwrap();
}

/// An API server whose certificate is issued for 127.0.0.1 by an authority. Returns its port, and both certificates.
async fn api_server(authority: &str) -> (u16, String, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, authority);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    leaf.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    let leaf = leaf.signed_by(&key, &authority).unwrap();
    let private_key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let tls = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![leaf.der().clone()], private_key);
    let acceptor = TlsAcceptor::from(Arc::new(tls.unwrap()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let body = r#"{"major":"1","minor":"36","gitVersion":"v1.36.0","gitCommit":"","gitTreeState":"","buildDate":"","goVersion":"","compiler":"","platform":""}"#;
            let length = body.len();
            let response =
                format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
            _ = stream.read(&mut [0; 4096]).await;
            _ = stream.write_all(response.as_bytes()).await;
            _ = stream.shutdown().await;
        }
    });
    (port, authority.pem(), leaf.pem())
}

#[tokio::test]
async fn a_server_certificate_in_place_of_its_authority_is_an_error_that_names_the_field() {
    let (port, authority, leaf) = api_server("kubernetes").await;
    let answer = async |root: &str| {
        let cluster = format!("server: \"https://127.0.0.1:{port}\", certificate-authority-data: {}", data(root));
        connected(&of("", &cluster)).unwrap().apiserver_version().await.map_err(|error| describe(&error))
    };
    assert_eq!(answer(&authority).await.unwrap().git_version, "v1.36.0");
    let unknown = "the certificate of the API server is not issued by certificate-authority-data of the kubeconfig (or the \
                   file of certificate-authority)";
    let expected = format!(
        "{unknown}, which has the certificate of a server: write the certificate of the authority that issued it there"
    );
    assert_eq!(answer(&leaf).await.unwrap_err(), expected);
    let expected = format!("{unknown}: write the certificate of its authority there");
    for name in ["other", "kubernetes"] {
        let (_, other, _) = api_server(name).await;
        assert_eq!(answer(&other).await.unwrap_err(), expected, "an authority with the name {name}");
    }
}

#[tokio::test]
async fn requests_go_through_the_proxy_of_the_kubeconfig() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let proxy = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let length = stream.read(&mut request).await.unwrap();
        stream.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    });
    let cluster = format!("server: \"https://east.example:6443\", proxy-url: \"http://user:s3cr3t@127.0.0.1:{port}\"");
    let client = embedded(&of("token: abc", &cluster)).unwrap();
    let error = describe(&client.apiserver_version().await.unwrap_err());
    let expected = format!("cannot connect to https://east.example:6443/ through the proxy http://127.0.0.1:{port}: ");
    assert!(error.starts_with(&expected) && !error.contains("s3cr3t"), "{error}");
    let request = proxy.await.unwrap();
    assert!(request.starts_with("CONNECT east.example:6443 HTTP/1.1\r\n"), "{request}");
    assert!(request.to_lowercase().contains("proxy-authorization: basic "), "{request}");
}
