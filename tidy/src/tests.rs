//! Each rule on a tiny bad example, and on a good one next to it.

use super::*;

fn file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), length: text.len() as u64, text: text.to_owned() }
}

fn package(name: &str, folder: &str, ours: &[(&str, bool)], foreign: &[&str]) -> Package {
    Package {
        name: name.to_owned(),
        folder: folder.to_owned(),
        ours: ours.iter().map(|(name, for_tests)| ((*name).to_owned(), *for_tests)).collect(),
        foreign: foreign.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// Exactly one finding, whose message contains `part`.
#[track_caller]
fn one(findings: &[Finding], part: &str) {
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].message.contains(part), "{findings:?}");
}

#[test]
fn import_upwards_is_found() {
    let packages = |ours: &[(&str, bool)]| {
        vec![
            package("low", "crates/base", ours, &[]),
            package("high", "crates/volume", &[("low", false)], &[]),
        ]
    };
    assert_eq!(layers(&packages(&[])), []);
    one(&layers(&packages(&[("high", false)])), "imports high");
}

#[test]
fn tests_may_look_up_but_not_beside() {
    let base = package("low", "crates/base", &[("high", true)], &[]);
    let volume = package("high", "crates/volume", &[("beside", true)], &[]);
    let sim = package("beside", "sim", &[], &[]);
    one(&layers(&[base, volume, sim]), "imports beside");
}

#[test]
fn crate_without_a_layer_is_found() {
    one(&layers(&[package("new", "crates/new", &[], &[])]), "no place in LAYERS");
}

#[test]
fn circle_of_imports_is_found_and_one_of_four_files_is_not() {
    let ring = |count: usize| -> Vec<File> {
        let next = |n: usize| {
            format!("//! A file.\nuse crate::room::m{}::{{Thing, other::Name}};\n", (n + 1) % count)
        };
        (0..count).map(|n| file(&format!("crates/new/src/room/m{n}.rs"), &next(n))).collect()
    };
    let packages = [package("new", "crates/new", &[], &[])];
    assert_eq!(import_circles(&packages, &ring(4)), []);
    one(&import_circles(&packages, &ring(5)), "5 files import each other");
    assert_eq!(circles("crates/new", &ring(5)).iter().map(Vec::len).collect::<Vec<_>>(), [5]);
}

#[test]
fn import_is_found_in_code_by_way_of_a_re_export_and_by_super_but_not_in_tests() {
    let circle = |first: &str| {
        let root = file("crates/new/src/lib.rs", "mod a;\nmod b;\npub use b::Thing;\n");
        let second = file("crates/new/src/b.rs", "use crate::a::Other;\npub struct Thing;\n");
        circles("crates/new", &[root, file("crates/new/src/a.rs", first), second]).len()
    };
    assert_eq!(circle("pub struct Other;\n"), 0);
    assert_eq!(circle("use crate::Thing;\n"), 1);
    assert_eq!(circle("use super::{Thing};\n"), 1);
    assert_eq!(circle("fn f() { crate::b::g() }\n"), 1);
    assert_eq!(circle("// crate::b is what it is for.\n"), 0);
    assert_eq!(circle("#[cfg(test)]\nmod tests {\n    use crate::b::Thing;\n}\n"), 0);
}

#[test]
fn server_that_a_command_names_by_itself_is_found() {
    let text = "//! x\nuse cairn_server::run;\n";
    one(&doors(&file("crates/cli/src/commands/top.rs", text)), "crates/cli/src/commands/serve.rs");
    assert_eq!(doors(&file("crates/cli/src/commands/serve.rs", text)), []);
    assert_eq!(doors(&file("crates/cli/src/main.rs", "//! x\n// cairn_server\n")), []);
}

#[test]
fn file_without_a_head_is_found_outside_tests() {
    one(&source(&file("crates/volume/src/map.rs", "fn f() {}\n")), "//!");
    assert_eq!(source(&file("crates/volume/src/map/tests.rs", "fn f() {}\n")), []);
    assert_eq!(source(&file("crates/volume/src/map.rs", "//! Maps.\nfn f() {}\n")), []);
}

#[test]
fn long_file_is_found_but_its_tests_do_not_count() {
    let code = "fn f() {}\n".repeat(1001);
    one(&source(&file("crates/volume/src/map.rs", &format!("//! Maps.\n{code}"))), "1002 lines");
    let tests = format!("//! Maps.\n#[cfg(test)]\nmod tests {{\n{code}}}\n");
    assert_eq!(source(&file("crates/volume/src/map.rs", &tests)), []);
}

#[test]
fn wide_comment_is_found_and_a_table_or_code_in_a_comment_is_not() {
    let wide = "word ".repeat(25);
    one(&source(&file("sim/src/lib.rs", &format!("//! Simulates.\n// {wide}\n"))), "128 columns");
    for fine in
        [format!("// | {wide}"), format!("/// ```text\n/// {wide}\n/// ```"), format!("let a = \"{wide}\";")]
    {
        assert_eq!(source(&file("sim/src/lib.rs", &format!("//! Simulates.\n{fine}\n"))), []);
    }
}

#[test]
fn every_unfinished_word_is_found() {
    for word in source::UNFINISHED {
        one(&source(&file("sim/src/lib.rs", &format!("//! Simulates.\n// {word}(later)\n"))), word);
    }
    assert_eq!(source(&file("sim/src/lib.rs", &format!("//! {}X\n", source::UNFINISHED[2]))), []);
}

#[test]
fn unchecked_code_is_found_outside_device() {
    let text = concat!("//! Bytes.\nfn f() { un", "safe { g() } }\n");
    one(&source(&file("crates/volume/src/map.rs", text)), "crates/device");
    assert_eq!(source(&file("crates/device/src/map.rs", text)), []);
    let prose = concat!("//! Bytes, never un", "safe.\nconst A: &str = \"un", "safe\";\n");
    assert_eq!(source(&file("crates/volume/src/map.rs", prose)), []);
}

#[test]
fn real_time_threads_and_randomness_are_found_in_the_engine() {
    for (text, _) in source::FROM_THE_MACHINE {
        let text = format!("//! Works.\nfn f() {{ std::{text}(); }}\n");
        one(&source(&file("crates/mirror/src/lib.rs", &text)), "here:");
        assert_eq!(source(&file("crates/server/src/lib.rs", &text)), []);
        assert_eq!(source(&file("crates/mirror/tests/two.rs", &text)), []);
    }
}

#[test]
fn folder_named_after_a_kind_is_found() {
    one(&layout(&file("crates/volume/src/utils/map.rs", "")), "`utils`");
    one(&layout(&file("crates/volume/src/types.rs", "")), "`types.rs`");
    assert_eq!(layout(&file("crates/volume/src/map.rs", "")), []);
}

#[test]
fn large_file_is_found() {
    let large = File { length: (5 << 20) + 1, ..file("docs/picture.png", "") };
    one(&layout(&large), "tracked");
}

#[test]
fn link_to_nothing_is_found() {
    let files = [file("docs/format.md", ""), file("crates/base/src/lib.rs", "")];
    let text = "[a](format.md#x) [b](../crates/base) [c](https://example.org) [d](#here)\n```\n[e](f)\n```\n";
    assert_eq!(links(&file("docs/a.md", text), &files), []);
    one(&links(&file("docs/a.md", "[a](crates/base)"), &files), "leads nowhere");
}

#[test]
fn first_screen_without_the_commands_is_found() {
    let good = "# Cairn\n\nKeeps.\n\n```\npicture\n```\n\n`cargo run --release -- demo` `./test`\n";
    assert_eq!(readme(&file("README.md", good)), []);
    one(&readme(&file("README.md", &good.replace("./test", ""))), "./test");
    one(&readme(&file("README.md", &good.replace("Keeps.\n\n", ""))), "one sentence");
    one(&readme(&file("README.md", &good.replace("```", ""))), "picture");
    let late = good.replace("picture", &"line\n".repeat(50));
    assert!(!readme(&file("README.md", &late)).is_empty());
}

#[test]
fn crate_that_architecture_leaves_out_is_found() {
    let packages = [package("low", "crates/base", &[], &[])];
    assert_eq!(architecture_names_every_crate(&file("A.md", "[base](crates/base)"), &packages), []);
    one(&architecture_names_every_crate(&file("A.md", "base"), &packages), "crates/base");
}

#[test]
fn dependency_without_a_line_and_line_without_a_dependency_are_found() {
    let packages = [package("low", "crates/base", &[], &["libc"])];
    assert_eq!(dependencies(&file("d.md", "| `libc` | why |\n"), &packages), []);
    one(&dependencies(&file("d.md", ""), &packages), "`libc`");
    one(&dependencies(&file("d.md", "| `libc` | why |\n| `gone` | why |\n"), &packages), "`gone`");
}

#[test]
fn promise_without_a_test_is_found() {
    let files = [file("sim/src/tests.rs", "#[test]\nfn survives_cut() {}\nfn no_test() {}\n")];
    let table = |name: &str| file("g.md", &format!("| promise | test |\n|---|---|\n| flush | {name} |\n"));
    assert_eq!(guarantees(&table("`sim::survives_cut`"), &files), []);
    one(&guarantees(&table("`sim::survives_all`"), &files), "no test is called");
    one(&guarantees(&table("`no_test`"), &files), "no test is called");
    one(&guarantees(&table(""), &files), "without the name");
    one(&guarantees(&file("g.md", "text"), &files), "no table");
}

#[test]
fn offset_that_is_not_the_structs_is_found() {
    let code = "//! x\nconst N: usize = 2 * 8;\n#[repr(C)]\npub struct Inner {\n    pub a: U32,\n    pub b: [u8; 4],\n}\n\
                /// Outer.\npub struct Outer {\n    /// The magic.\n    pub magic: [u8; 8],\n    pub inner: Inner,\n    \
                pub rest: [u8; N],\n    pub end: U16<LE>,\n}\n";
    let files = [file("crates/format/src/outer.rs", code)];
    let table = |end: u32| {
        let rows = format!(
            "| 0 | 8 | `magic` |\n| 8 | 8 | `inner` |\n| 16 | 16 | `rest` |\n| {end} | 2 | `end` |\n"
        );
        file("docs/format.md", &format!("## `Outer`\n\n| offset | bytes | field |\n|---|---|---|\n{rows}"))
    };
    assert_eq!(format_tables(&table(32), &files), []);
    one(&format_tables(&table(33), &files), "`end` is at 32, not at 33");
    let short = file("docs/format.md", &table(32).text.replace("| 32 | 2 | `end` |\n", ""));
    one(&format_tables(&short, &files), "`end` as well");
    let wrong = file("docs/format.md", &table(32).text.replace("| 16 | 16 |", "| 16 | 15 |"));
    one(&format_tables(&wrong, &files), "16 bytes, not 15");
    one(&format_tables(&file("docs/format.md", ""), &files), "no table");
}

#[test]
fn constant_that_is_not_the_formats_is_found() {
    let code =
        "//! x\npub const SLOTS: u64 = 1 << 4;\nconst BITS: u64 = ((SLOTS as usize + 16) / 2 * 8) as u64;\n";
    let files = [file("crates/format/src/layout.rs", code)];
    let table = |bits: u32| {
        let rows = format!("| `SLOTS` | 16 |\n| `BITS` | {bits} |\n");
        file("docs/format.md", &format!("| constant | value |\n|---|---|\n{rows}"))
    };
    assert_eq!(format_tables(&table(128), &files), []);
    one(&format_tables(&table(127), &files), "`BITS` is Some(128)");
}

#[test]
fn code_only_blanks_prose_and_keeps_lines() {
    let text = "a /* b /* c */ d */ e // f\n'g' 'h: \"i\\\"j\" r#\"k\"l\"# m\n";
    let code = text::code_only(text);
    assert_eq!(code.lines().count(), 2);
    let words: Vec<&str> = code.split_whitespace().collect();
    assert_eq!(words, ["a", "e", "'h:", "m"]);
}

#[test]
fn page_that_the_summary_leaves_out_or_lists_twice_is_found() {
    let summary_of = |text: &str| vec![file("docs/SUMMARY.md", text), file("docs/tasks/a.md", "")];
    assert_eq!(summary(&summary_of("- [A](tasks/a.md)\n")), []);
    one(&summary(&summary_of("# Summary\n")), "is not in");
    one(&summary(&summary_of("- [A](tasks/a.md)\n- [B](tasks/a.md)\n")), "twice");
    one(&summary(&[]), "is missing");
}

#[test]
fn page_that_is_long_or_names_no_reader_is_found() {
    let page = |text: &str| vec![file("docs/tasks/a.md", text)];
    let good = "# A\n\nFor administrators. It shows a.\n";
    assert_eq!(pages_are_short_and_name_their_reader(&page(good)), []);
    let long = format!("{good}{}", "word\n".repeat(4000));
    one(&pages_are_short_and_name_their_reader(&page(&long)), "split it");
    one(&pages_are_short_and_name_their_reader(&page("# A\n\nIt shows a.\n")), "reader");
    one(&pages_are_short_and_name_their_reader(&page("For administrators\n\nFor all.\n")), "title");
}

#[test]
fn anchor_without_a_heading_is_found() {
    let files = [file("docs/b.md", "# B\n\n## `Outer` & inner (new)\n\n```\n# no heading\n```\n")];
    let links = |target: &str| anchors(&file("docs/a.md", &format!("## Here\n[x]({target})\n")), &files);
    assert_eq!(links("b.md#outer--inner-new"), []);
    assert_eq!(links("https://example.org/#x"), []);
    one(&links("b.md#no-heading"), "has no heading");
}

#[test]
fn long_sentence_is_found_wherever_its_lines_break() {
    let long = format!("{}end.", "word\nword ".repeat(21));
    one(&english(&file("docs/a.md", &long)), "43 words");
    one(&english(&file("docs/a.md", &format!("| a | {} |\n", "word ".repeat(41)))), "41 words");
    assert_eq!(english(&file("docs/a.md", &"Short enough. ".repeat(30))), []);
    assert_eq!(english(&file("docs/a.md", &format!("```\n{}\n```\n", "word ".repeat(41)))), []);
    assert_eq!(english(&file("bench/results/a.md", &long)), []);
}

#[test]
fn mean_of_twenty_words_is_found() {
    one(&english(&file("docs/a.md", &format!("{}. ", "Word ".repeat(20).trim()).repeat(6))), "20.0 words");
    assert_eq!(english(&file("docs/a.md", &format!("{}. ", "Word ".repeat(19).trim()).repeat(6))), []);
}

#[test]
fn every_phrase_and_a_clause_as_a_subject_are_found() {
    for (phrase, _) in english::PHRASES {
        let findings = english(&file("docs/a.md", &format!("The server ({phrase}) ends.\n")));
        assert!(findings.iter().any(|finding| finding.message.contains(phrase)), "{phrase}: {findings:?}");
    }
    one(&english(&file("docs/a.md", "What waits is dropped.\n")), "as a subject");
    assert_eq!(english(&file("docs/a.md", "What is dropped then?\n\n## What is promised here\n")), []);
    assert_eq!(english(&file("docs/a.md", "Write `is told` never.\n")), []);
}

#[test]
fn paragraphs_are_items_cells_and_text_without_marks() {
    let text = "A *b* [c](d) `e f`.\n- g\n  h\n\n| i | j |\n|---|---|\n| `k` | l |\n";
    let texts: Vec<_> = paragraphs(text).into_iter().map(|paragraph| paragraph.text).collect();
    assert_eq!(texts, ["A b c _.", "g h", "i", "j", "_", "l"]);
}

#[test]
fn index_has_tests_with_their_documents_by_the_innermost_package() {
    let text = "/// Survives. And more.\n#[test]\nfn survives() {}\nfn no() {}\n#[tokio::test]\nasync fn waits() {}\n";
    let packages = [package("a", "fuzz", &[], &[]), package("b", "fuzz/targets", &[], &[])];
    let index = index_of_tests(&[file("fuzz/targets/src/tests.rs", text)], &packages);
    let found = &index["fuzz/targets"];
    assert_eq!(index.len(), 1);
    assert_eq!(found[0], ("survives".to_owned(), Some("Survives".to_owned())));
    assert_eq!(found[1], ("waits".to_owned(), None));
}

#[test]
fn comments_are_judged_as_documents_are() {
    let text = "//! Heads.\n\nfn f() {} // beside\n/// It is\n/// told.\n// A word.\n";
    let findings = english_of_comments(&file("crates/volume/src/map.rs", text));
    one(&findings, "`is told`");
    assert_eq!(findings[0].line, 4);
    assert_eq!(english_of_comments(&file("docs/a.md", text)), []);
}

#[test]
fn comments_avoid_further_phrases_except_in_folders_that_wait() {
    for (phrase, _) in english::COMMENT_PHRASES {
        let text = format!("// The server ({phrase}) ends.\n");
        assert!(!comments_are_plain(&file("crates/volume/src/map.rs", &text)).is_empty(), "{phrase}");
        assert_eq!(comments_are_plain(&file("crates/server/src/http/mirrors.rs", &text)), [], "{phrase}");
    }
    one(&comments_are_plain(&file("sim/src/a.rs", "/// What a device gave back.\n")), "as a subject");
}

#[test]
fn links_of_the_book_lead_to_its_pages_or_show_the_path() {
    let text = "[Format](docs/format.md#roots), [a flush](crates/volume/src/lib.rs), [here](#x),\n\
                ```\n[code](docs/format.md)\n```\n[the plan](ARCHITECTURE.md) [out](https://a.example/)";
    let mended = mend_links(text, "CONTRIBUTING.md", "docs/development/contributing.md", None);
    assert_eq!(
        mended,
        "[Format](../format.md#roots), <span title=\"crates/volume/src/lib.rs\">a flush</span>, [here](#x),\n\
         ```\n[code](docs/format.md)\n```\n[the plan](../architecture.md) [out](https://a.example/)"
    );
    let page = "[norm](../../crates/format) and [tests](testing.md)";
    let source = Some("https://git.example/cairn/blob/main");
    assert_eq!(
        mend_links(page, "docs/development/release.md", "docs/development/release.md", source),
        "[norm](https://git.example/cairn/blob/main/crates/format) and [tests](testing.md)"
    );
}
