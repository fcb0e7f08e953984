// SPDX-License-Identifier: Apache-2.0
//! The attribute behind `#[steersman_testing::test]`; use it from there.

use proc_macro::{TokenStream, TokenTree};

/// The servers that a test runs on: the name of the generated test function, and the variant that it passes.
const SERVERS: [(&str, &str); 2] = [("on_embedded", "Embedded"), ("on_real", "Real")];

/// Turns `async fn name(fixture: Fixture)` into one test for each API server: `name::on_real` and its siblings.
///
/// The function stays as it is. The macro adds a module of the same name (functions and modules do not share a
/// namespace), so that the report of the test run names the server.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    if !arguments.is_empty() {
        return error("`#[steersman_testing::test]` takes no arguments");
    }
    let Some(name) = function_name(&item) else {
        return error("`#[steersman_testing::test]` belongs on `async fn name(fixture: Fixture)`");
    };
    let tests: String = SERVERS
        .iter()
        .map(|(test, server)| {
            format!(
                "#[::core::prelude::v1::test]
                 fn {test}() {{
                     ::steersman_testing::run(
                         ::steersman_testing::ServerKind::{server}, ::core::module_path!(), super::{name});
                 }}"
            )
        })
        .collect();
    item.into_iter()
        .chain(rust(&format!("mod {name} {{ {tests} }}")))
        .collect()
}

/// Expands to the dependencies of the crate that is being compiled, as arguments for another call of `rustc`.
///
/// Compile-fail tests of this workspace compile files against them: no second build of the dependencies, no network. A macro runs
/// inside of `rustc`, so its arguments are those that cargo chose.
#[doc(hidden)]
#[proc_macro]
pub fn rustc_dependencies(_: TokenStream) -> TokenStream {
    let mut arguments = std::env::args();
    let mut dependencies = String::new();
    while let Some(argument) = arguments.next() {
        if matches!(&*argument, "--extern" | "-L")
            && let Some(value) = arguments.next()
        {
            dependencies += &format!("{argument:?}, {value:?}, ");
        }
    }
    rust(&format!("[{dependencies}]"))
}

/// The identifier behind the first `fn`, if an `async` stands somewhere before it.
fn function_name(item: &TokenStream) -> Option<String> {
    let mut asynchronous = false;
    let mut tokens = item.clone().into_iter();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(word) if word.to_string() == "async" => asynchronous = true,
            TokenTree::Ident(word) if word.to_string() == "fn" => {
                return tokens
                    .next()
                    .filter(|_| asynchronous)
                    .map(|name| name.to_string());
            }
            _ => {}
        }
    }
    None
}

fn error(message: &str) -> TokenStream {
    rust(&format!("::core::compile_error!({message:?});"))
}

fn rust(text: &str) -> TokenStream {
    text.parse().expect("what this file writes is Rust")
}
