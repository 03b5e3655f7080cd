//! Every drill in turn, and a page that a person reads who has never seen this project.
//!
//! Each drill runs as a command of its own, so that the page has what anyone would have seen. The
//! page counts only what the drills themselves printed.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The drills' settings.
#[derive(Clone, Debug, clap::Args)]
pub struct AllPlan {
    /// The ankusa binary, built with the feature mutations
    #[arg(long)]
    pub binary: PathBuf,
    /// Where the page goes (Markdown)
    #[arg(long)]
    pub report: PathBuf,
    /// Seed of every choice
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How much of everything: 1 is what every change is tested with
    #[arg(long, default_value_t = 1)]
    pub scale: u32,
    /// A tenth of it, on ext4 only: to see the page
    #[arg(long, conflicts_with = "scale")]
    pub quick: bool,
    /// Only these drills
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Leave out these drills
    #[arg(long, value_delimiter = ',')]
    pub skip: Vec<String>,
    /// Install what is missing, through apt
    #[arg(long)]
    pub install: bool,
}

/// One drill of the page.
struct Part {
    name: &'static str,
    /// What is done to the node, for someone who has never seen it.
    what: &'static str,
    command: Vec<String>,
}

/// What a drill printed.
struct Outcome {
    part: Part,
    lines: Vec<String>,
    passed: bool,
    took: Duration,
}

/// What the lines of a drill add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    checks: usize,
    acked: u64,
    recovered: u64,
    missing: u64,
    altered: u64,
    invented: u64,
    duplicates: u64,
    extra: u64,
    caught: usize,
    missed: usize,
}

/// Runs the drills and writes the page. True: every one passed.
pub fn run(plan: &AllPlan) -> Result<bool> {
    let program = std::env::current_exe()?;
    let mut outcomes = Vec::new();
    for part in parts(plan)? {
        let named = |list: &[String]| list.iter().any(|name| name == part.name);
        if named(&plan.skip) || !(plan.only.is_empty() || named(&plan.only)) {
            continue;
        }
        println!("== {}", part.command.join(" "));
        outcomes.push(run_part(&program, part)?);
        // After each: an interrupted run leaves what it found.
        fs::write(&plan.report, page(plan, &outcomes))
            .with_context(|| plan.report.display().to_string())?;
    }
    println!("all: the page is {}", plan.report.display());
    Ok(!outcomes.is_empty() && outcomes.iter().all(|outcome| outcome.passed))
}

fn parts(plan: &AllPlan) -> Result<Vec<Part>> {
    let binary = plan.binary.canonicalize()?.display().to_string();
    let seed = plan.seed.to_string();
    let scaled = |n: u32| match plan.quick {
        true => n.div_ceil(10).to_string(),
        false => (n * plan.scale).to_string(),
    };
    let live = |name: &'static str, what, more: &[&str]| {
        let mut command: Vec<String> = vec![name.to_owned(), "--binary".into(), binary.clone()];
        command.extend(more.iter().map(|word| (*word).to_owned()));
        let has_disk = !["kill", "cores"].contains(&name);
        if has_disk && plan.install {
            command.push("--install".into());
        }
        if has_disk && plan.quick {
            command.extend(["--fs".into(), "ext4".into()]);
        }
        Part {
            name,
            what,
            command,
        }
    };
    let simulated = |name: &'static str, what, words: &[&str]| Part {
        name,
        what,
        command: words.iter().map(|word| (*word).to_owned()).collect(),
    };
    let dual = |name: &'static str, what, words: &[&str]| {
        let mut part = simulated(name, what, words);
        part.command.extend(["--binary".into(), binary.clone()]);
        part
    };
    let (kills, cuts, cycles) = (scaled(20), scaled(20), scaled(10));
    let (history, seeds) = (scaled(60), scaled(2000));
    let (dual_kills, dual_seeds) = (scaled(12), scaled(1000));
    let (dm_cuts, dm_logged) = (scaled(1), scaled(60));
    Ok(vec![
        live(
            "cores",
            "The same event sent at once over many connections to every core; then the \
             store reopened with fewer and with more cores, killed or stopped in between.",
            &[],
        ),
        live(
            "kill",
            "The process is killed (SIGKILL) under load: at random moments, in the middle \
             of a commit, and during its own start, twice in a row.",
            &["--seed", &seed, "--kills", &kills],
        ),
        dual(
            "kill-dual",
            "Every event also goes into a replicated log before it is acknowledged. The process is \
             killed under load, during its start, in the middle of a backup, a restore and a recovery; \
             or the whole host is lost with its disk, and made whole again from a backup and the log, \
             or from the log alone.",
            &[
                "kill",
                "--dual",
                "--seed",
                &seed,
                "--kills",
                &dual_kills,
                "--acked",
                "400",
            ],
        ),
        dual(
            "broker",
            "The replicated log is on three real Kafka brokers (`drills/kafka up separate` first), \
             which are killed, paused and moved, and whose topic is changed, emptied and made again. \
             Nothing may be acknowledged while they cannot confirm it.",
            &["broker"],
        ),
        live(
            "power-fuse",
            "The power is cut under load. The disk is ours and sees every write and \
             every flush: whatever no flush had covered is lost, torn or reordered, sector by \
             sector, on ext4 and xfs. Then the disk fails writes and flushes, lies about one, and \
             one stretch of writes is rebuilt at every flush.",
            &["--seed", &seed, "--cuts", &cuts, "--history", &history],
        ),
        live(
            "disk",
            "The disk fails, is full, is slow, stops answering, and is well again; the \
             file system gives up. The node must say so, refuse, and go on by itself.",
            &["--seed", &seed],
        ),
        live(
            "power-shutdown",
            "The file system is shut down under the running node, with and \
             without its journal.",
            &["--seed", &seed, "--cycles", &cycles],
        ),
        live(
            "power-dm",
            "The power is cut with the kernel's own tools: a device that drops or \
             fails writes from one moment on, and a log of every write, rebuilt at every flush. \
             Where the kernel here has no such tools, one of Debian is booted in an emulator.",
            &[
                "--seed",
                &seed,
                "--cuts",
                &dm_cuts,
                "--acked",
                "60",
                "--logged",
                &dm_logged,
                "--subsets",
                "1",
            ],
        ),
        simulated(
            "sim",
            "The heart of the node on a simulated disk, clock, client and sinks: \
             histories of 200 steps with at least 5 disk faults each, power cuts at any moment, \
             all from a seed.",
            &["sim", "--seeds", &seeds, "--from", &seed],
        ),
        simulated(
            "sim-dual",
            "The same with a replicated log that confirms late, twice, out of order or never, loses \
             its end or is made anew; and hosts that are lost with their disks.",
            &["sim", "--dual", "--seeds", &dual_seeds, "--from", &seed],
        ),
        simulated(
            "sim-enumerated",
            "A short history in which every single disk operation fails in \
             turn, in each of six ways, and the power is cut before and after every flush.",
            &["sim", "--enumerate"],
        ),
        simulated(
            "mutations",
            "The promise broken on purpose in the code, each time in another way: the \
             simulation must notice each.",
            &["mutations", "--sim"],
        ),
    ])
}

fn run_part(program: &Path, part: Part) -> Result<Outcome> {
    let started = Instant::now();
    let mut child = Command::new(program)
        .args(&part.command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| program.display().to_string())?;
    let mut lines = Vec::new();
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines() {
            let line = line?;
            println!("{line}");
            lines.push(line);
        }
    }
    let passed = child.wait()?.success();
    Ok(Outcome {
        part,
        lines,
        passed,
        took: started.elapsed(),
    })
}

fn sums(lines: &[String]) -> Sums {
    let mut sums = Sums::default();
    for line in lines {
        let is_control = line.contains("control ");
        if is_control {
            sums.caught += usize::from(line.contains("caught"));
            sums.missed += usize::from(line.contains("MISSED"));
            // Its losses are the point.
            continue;
        }
        if !line.contains(" acked=") || !line.contains(" missing=") {
            continue;
        }
        let number = |name: &str| -> u64 {
            line.split_whitespace()
                .filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
                .next_back()
                .unwrap_or(0)
        };
        sums.checks += 1;
        sums.acked += number("acked");
        sums.recovered += number("recovered");
        sums.missing += number("missing");
        sums.altered += number("altered");
        sums.invented += number("invented");
        sums.duplicates += number("duplicate_hooks");
        sums.extra += number("extra_deliveries");
    }
    sums
}

/// What was done, counted from the lines, in words.
fn deeds(lines: &[String]) -> String {
    let sum = |name: &str| -> u64 {
        let words = lines.iter().filter(|line| !line.contains("control "));
        words
            .flat_map(|line| line.split([' ', ';']))
            .filter_map(|word| word.strip_prefix(name)?.parse::<u64>().ok())
            .sum()
    };
    let count = |with: &str| lines.iter().filter(|line| line.contains(with)).count() as u64;
    let mut done: Vec<String> = lines
        .iter()
        .filter(|line| line.contains("at random moments") || line.contains(" seeds, "))
        .filter_map(|line| line.split_once(": ").map(|(_, text)| text.to_owned()))
        .map(|text| text.replace(" at random moments", " kills at random moments"))
        .collect();
    for (number, what) in [
        (sum("cuts=") + count(", cut "), "power cuts"),
        (sum("shutdowns="), "file systems shut down"),
        (
            count(" writes_failed=") + count(", period "),
            "faults of the disk",
        ),
        (count(" probe="), "troubles of the disk"),
        (sum("flushes=") + sum("flush_points="), "flushes rebuilt"),
        (
            sum("subsets="),
            "parts of what no flush had covered rebuilt",
        ),
        (count("control "), "promises broken on purpose"),
    ] {
        if number > 0 {
            done.push(format!("{number} {what}"));
        }
    }
    for (line, _) in lines
        .iter()
        .filter_map(|line| line.split_once(" cases, met"))
    {
        let number = line.rsplit(' ').next().unwrap_or_default();
        done.push(format!("{number} cases"));
    }
    done.join(", ")
}

fn page(plan: &AllPlan, outcomes: &[Outcome]) -> String {
    let failed = outcomes.iter().filter(|outcome| !outcome.passed).count();
    let mut out = String::new();
    out.push_str("# ankusa: what was done to it, and what it kept\n\n");
    out.push_str(
        "ankusa takes webhooks over HTTP and delivers them. When it answers 201 (\"acked\") it \
         promises that the webhook is not lost any more and is delivered at least once. The drills \
         below try to make it break that promise. A client writes down everything it sent and was \
         told; a sink writes down everything it was given; both are compared.\n\n",
    );
    let _ = match failed {
        0 => writeln!(out, "**All {} drills passed.**\n", outcomes.len()),
        _ => writeln!(out, "**{failed} of {} drills FAILED.**\n", outcomes.len()),
    };
    out.push_str(
        "| drill | result | took | what was done | comparisons | acked | found again | missing | altered | \
         invented | second hooks of one key | repeated deliveries | controls caught |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for outcome in outcomes {
        let s = sums(&outcome.lines);
        let controls = format!("{} of {}", s.caught, s.caught + s.missed);
        let _ = writeln!(
            out,
            "| [{0}](#{0}) | {1} | {2} s | {12} | {3} | {4} | {5} | {6} | {7} | {8} | {9} | {10} | {11} |",
            outcome.part.name,
            if outcome.passed {
                "passed"
            } else {
                "**FAILED**"
            },
            outcome.took.as_secs(),
            s.checks,
            s.acked,
            s.recovered,
            s.missing,
            s.altered,
            s.invented,
            s.duplicates,
            s.extra,
            controls,
            deeds(&outcome.lines),
        );
    }
    out.push_str(
        "\n- *acked*, *found again*: summed over all comparisons; a hook that is compared after \
         each of ten cuts counts ten times.\n\
         - *missing*: acked, and not delivered. *altered*: delivered with other bytes. *invented*: \
         delivered and never sent. *second hooks of one key*: a retry stored twice. All must be 0.\n\
         - *repeated deliveries* are allowed after a crash, within a bound: delivery is at least \
         once.\n\
         - *controls*: the promise is broken on purpose, in the real code; a drill that does not \
         notice proves nothing, so each must be caught.\n\
         - The simulation counts broken promises instead of hooks; see its lines.\n\n",
    );
    out.push_str("## Where\n\n");
    for (name, value) in host_facts(plan) {
        let _ = writeln!(out, "- {name}: {value}");
    }
    for outcome in outcomes {
        let _ = writeln!(
            out,
            "\n## {}\n\n{}\n\n`ankusa-drills {}` {} after {} s.\n\n```",
            outcome.part.name,
            outcome.part.what,
            outcome.part.command.join(" "),
            if outcome.passed { "passed" } else { "FAILED" },
            outcome.took.as_secs(),
        );
        for line in &outcome.lines {
            out.push_str(line);
            out.push('\n');
        }
        out.push_str("```\n");
    }
    out
}

fn host_facts(plan: &AllPlan) -> Vec<(&'static str, String)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split(':').nth(1))
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let version = Command::new(&plan.binary).arg("--version").output();
    let version = version.map_or(String::new(), |output| {
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    });
    let date = Command::new("date").args(["-u", "+%F %T UTC"]).output();
    let date = date.map_or(String::new(), |output| {
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    });
    let cpus = std::thread::available_parallelism().map_or(0, |n| n.get());
    vec![
        ("node", version),
        ("seed", plan.seed.to_string()),
        (
            "kernel",
            read("/proc/sys/kernel/osrelease").trim().to_owned(),
        ),
        (
            "CPU",
            format!("{} × {}", cpus, field(&read("/proc/cpuinfo"), "model name")),
        ),
        ("memory", field(&read("/proc/meminfo"), "MemTotal")),
        ("written", date),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_count_checks_and_controls_apart() {
        let lines = [
            "kill: acked=10 recovered=9 missing=1 altered=0 invented=0 duplicate_hooks=0 \
             extra_deliveries=4 (at most 8192)",
            "x: log-writes: flush_points=2 acked=1..5 bad=0; over all images: acked=7 recovered=7 \
             missing=0 altered=0",
            "x: history flushes=60 acked=105..726 subsets=651",
            "kill: control a caught: acked=5 recovered=1 missing=4",
            "control b: MISSED: nothing",
        ]
        .map(str::to_owned);
        let expected = Sums {
            checks: 2,
            acked: 17,
            recovered: 16,
            missing: 1,
            extra: 4,
            caught: 1,
            missed: 1,
            ..Sums::default()
        };
        assert_eq!(sums(&lines), expected);
    }

    #[test]
    fn what_was_done_is_counted_without_the_controls() {
        let lines = [
            "kill: 20 at random moments, 34 at named points, 10 during boot",
            "power-fuse: ext4: half cuts=3 acked=1 missing=0",
            "power-fuse: ext4: suffix cuts=2 acked=1 missing=0",
            "power-fuse: ext4: control skip_sync caught after 1 cuts: acked=4 missing=2",
            "sim: every flush (seed 1): 1234 cases, met 5 EIO",
        ]
        .map(str::to_owned);
        assert_eq!(
            deeds(&lines),
            "20 kills at random moments, 34 at named points, 10 during boot, 5 power cuts, \
             1 promises broken on purpose, 1234 cases"
        );
    }
}
