// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask bench`: runs benchmarks of Steersman and of other frameworks in the same run, and prints the results.
//!
//! A program prints one JSON object per line: `bench`, `who`, `n`, `wall_s`, `cpu_s`, `peak_mb`, and fields of the
//! benchmark. Programs are in `bench/`, those of other frameworks in `bench/peers/`; `bench/registry.rs` lists them.

mod program;
mod registry;

use std::{
    cmp::Ordering,
    ffi::OsString,
    fs,
    process::{Command, Stdio},
};

use serde_json::{Map, Value};

use crate::{Failure, root, step::step};
use program::{Program, go_is_there};
use registry::{BENCHES, Bench, Kind, Participant};

/// Columns that every benchmark has, in the order of the table.
const COLUMNS: [&str; 6] = ["bench", "who", "n", "wall_s", "cpu_s", "peak_mb"];

/// Options of the command.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    names: Vec<String>,
    quick: bool,
    json: bool,
    save: bool,
}

impl Plan {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, Failure> {
        let mut plan = Self::default();
        for word in words {
            match *word {
                "--quick" => plan.quick = true,
                "--json" => plan.json = true,
                "--save" => plan.save = true,
                flag if flag.starts_with('-') => {
                    return Err(format!(
                        "`cargo xtask bench` has no option {flag}; it has --quick, --json and --save"
                    ));
                }
                name => plan.names.push(name.to_owned()),
            }
        }
        if plan.quick && plan.save {
            return Err(
                "--quick and --save exclude each other: results of a quick run are not representative"
                    .to_owned(),
            );
        }
        Ok(plan)
    }

    fn chosen(&self) -> Result<Vec<&'static Bench>, Failure> {
        if self.names.is_empty() {
            return Ok(BENCHES.iter().collect());
        }
        self.names
            .iter()
            .map(|name| {
                BENCHES
                    .iter()
                    .find(|bench| bench.name == name.as_str())
                    .ok_or_else(|| {
                        let known: Vec<&str> = BENCHES.iter().map(|bench| bench.name).collect();
                        format!("unknown benchmark `{name}`; benchmarks: {}", known.join(", "))
                    })
            })
            .collect()
    }
}

pub(crate) fn run(plan: &Plan) -> Result<(), Failure> {
    let go = go_is_there();
    for bench in plan.chosen()? {
        let runs = step(&format!("building {}", bench.name), || bench.build(go))?;
        let rows = step(&format!("measuring {}", bench.name), || {
            let mut rows = Vec::new();
            for run in runs {
                rows.extend(measure(run, plan)?);
            }
            Ok(rows)
        })?;
        if !plan.json {
            print!("{}", table(&rows));
        }
        if plan.save {
            save(bench.name, &rows)?;
        }
    }
    Ok(())
}

impl Bench {
    /// Builds the programs and returns the command lines to run.
    fn build(&self, go: bool) -> Result<Vec<Vec<OsString>>, Failure> {
        match &self.kind {
            Kind::Direct(programs) => {
                if programs.iter().any(|program| !program.is_possible(go)) {
                    eprintln!("Go is not installed: skipping the Go programs of {}", self.name);
                }
                let possible = programs.iter().filter(|program| program.is_possible(go));
                possible
                    .map(|program| Ok(vec![program.build()?.into_os_string()]))
                    .collect()
            }
            Kind::Driven { driver, participants } => {
                let (possible, missing) = split(participants, go);
                if !missing.is_empty() {
                    eprintln!(
                        "Go is not installed: skipping {} of {}",
                        missing.join(", "),
                        self.name
                    );
                }
                let driver = Program::Driver { name: driver };
                let mut line = vec![driver.build()?.into_os_string()];
                for participant in possible {
                    let mut word = OsString::from(format!("{}=", participant.who));
                    word.push(participant.program.build()?);
                    line.push(word);
                }
                Ok(vec![line])
            }
        }
    }
}

/// Returns the participants that can be built here, and the names of the others.
fn split(participants: &[Participant], go: bool) -> (Vec<&Participant>, Vec<&'static str>) {
    let (possible, missing): (Vec<_>, Vec<_>) = participants
        .iter()
        .partition(|participant| participant.program.is_possible(go));
    (
        possible,
        missing.iter().map(|participant| participant.who).collect(),
    )
}

/// Runs one program or driver. With `--json`, its lines are printed unchanged.
fn measure(line: Vec<OsString>, plan: &Plan) -> Result<Vec<Map<String, Value>>, Failure> {
    let mut words = line.into_iter();
    let program = words.next().unwrap_or_default();
    let shown = program.display().to_string();
    let mut run = Command::new(program);
    if plan.quick {
        run.arg("--quick");
    }
    let output = run
        .args(words)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run {shown}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{shown} failed with {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            if plan.json {
                println!("{line}");
            }
            parse(line).ok_or_else(|| format!("{shown} printed a line that is not a measurement: {line}"))
        })
        .collect()
}

fn parse(line: &str) -> Option<Map<String, Value>> {
    let Ok(Value::Object(row)) = serde_json::from_str(line) else {
        return None;
    };
    COLUMNS
        .iter()
        .all(|column| row.contains_key(*column))
        .then_some(row)
}

/// Merges repeated measurements, which differ only in numbers, into one row with the median of each number.
fn medians(rows: &[Map<String, Value>]) -> Vec<Map<String, Value>> {
    let is_figure = |(key, value): (&String, &Value)| value.is_number() && key != "n";
    let what = |row: &Map<String, Value>| -> Map<String, Value> {
        let mut names = row.clone();
        names.retain(|key, value| !is_figure((key, value)));
        names
    };
    let mut groups: Vec<Vec<&Map<String, Value>>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| what(group[0]) == what(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    let merged = groups.into_iter().map(|group| {
        let mut row = group[0].clone();
        for (key, value) in row.iter_mut().filter(|(key, value)| is_figure((key, value))) {
            let mut figures: Vec<&Value> = group.iter().filter_map(|row| row.get(key)).collect();
            figures.sort_by(|a, b| a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal));
            *value = figures[figures.len() / 2].clone();
        }
        if group.len() > 1 {
            row.insert("runs".to_owned(), group.len().into());
        }
        row
    });
    merged.collect()
}

/// Returns a Markdown table: the common columns first, then the columns of the benchmark.
fn table(rows: &[Map<String, Value>]) -> String {
    let rows = medians(rows);
    let mut columns: Vec<&str> = COLUMNS.to_vec();
    for key in rows.iter().flat_map(Map::keys) {
        if !columns.contains(&key.as_str()) {
            columns.push(key);
        }
    }
    let mut lines = vec![
        columns
            .iter()
            .map(|column| (*column).to_owned())
            .collect::<Vec<_>>(),
    ];
    lines.extend(
        rows.iter()
            .map(|row| columns.iter().map(|column| cell(row.get(*column))).collect()),
    );
    let widths: Vec<usize> = (0..columns.len())
        .map(|index| {
            lines
                .iter()
                .map(|line| line[index].chars().count())
                .max()
                .unwrap_or_default()
        })
        .collect();
    let rule = widths.iter().map(|width| "-".repeat(*width)).collect();
    lines.insert(1, rule);
    let pad = |line: &Vec<String>| {
        let cells = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    lines.iter().map(pad).collect()
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => match number.as_f64() {
            Some(float) if number.is_f64() => format!("{float:.3}"),
            _ => number.to_string(),
        },
        Some(other) => other.to_string(),
    }
}

/// Writes the results to `bench/results`, as a table and as JSON lines.
fn save(name: &str, rows: &[Map<String, Value>]) -> Result<(), Failure> {
    let dir = root().join("bench/results");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let text = format!(
        "# {name}\n\nThe last table of `cargo xtask bench {name} --save`, on a machine with {cores} cores. Only ratios within \
         one table mean something.\n\n{}",
        table(rows)
    );
    let lines: String = rows
        .iter()
        .map(|row| format!("{}\n", Value::Object(row.clone())))
        .collect();
    fs::create_dir_all(&dir)
        .and_then(|()| fs::write(dir.join(format!("{name}.md")), text))
        .and_then(|()| fs::write(dir.join(format!("{name}.jsonl")), lines))
        .map_err(|error| format!("cannot write to {}: {error}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_the_common_columns_first() {
        let row = parse(r#"{"extra":1.5,"bench":"b","who":"us","n":1,"wall_s":0.25,"cpu_s":2,"peak_mb":3}"#)
            .unwrap();
        let expected = "\
| bench | who | n | wall_s | cpu_s | peak_mb | extra |
| ----- | --- | - | ------ | ----- | ------- | ----- |
| b     | us  | 1 | 0.250  | 2     | 3       | 1.500 |
";
        assert_eq!(table(&[row]), expected);
    }

    #[test]
    fn merges_repeated_measurements_into_medians() {
        let row = |who: &str, cpu: f64, peak: u64| {
            let line = format!(
                r#"{{"bench":"b","case":"c","who":"{who}","n":1,"wall_s":1,"cpu_s":{cpu},"peak_mb":{peak}}}"#
            );
            parse(&line).unwrap()
        };
        let rows = [
            row("us", 0.3, 9),
            row("us", 0.1, 7),
            row("them", 1.0, 5),
            row("us", 0.2, 8),
        ];
        let [us, them] = medians(&rows).try_into().unwrap();
        assert_eq!((&us["cpu_s"], &us["peak_mb"]), (&0.2.into(), &8.into()));
        assert_eq!((&us["runs"], &us["n"]), (&3.into(), &1.into()));
        assert_eq!(them, rows[2]);
    }

    #[test]
    fn rejects_a_line_without_the_common_columns() {
        assert!(parse(r#"{"bench":"b"}"#).is_none());
        assert!(parse("starting up").is_none());
    }

    #[test]
    fn skips_go_programs_without_go() {
        let participant = |who, program| Participant { who, program };
        let all = [
            participant("rust", Program::RustPeer { bin: "a" }),
            participant("go", Program::Go { module: "b" }),
        ];
        let (possible, missing) = split(&all, false);
        assert_eq!(possible.len(), 1);
        assert_eq!(missing, ["go"]);
        assert_eq!(split(&all, true).0.len(), 2);
    }

    #[test]
    fn rejects_an_unknown_benchmark() {
        Plan::parse(&["no-such-bench"])
            .unwrap()
            .chosen()
            .map(|_| ())
            .unwrap_err();
    }
}
