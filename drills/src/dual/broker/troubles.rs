//! The troubles of drill `broker`: what is done to the brokers, the topic or the node, and what the
//! node must do about it. Each leaves all three brokers running and the topic as it must be.

use super::*;
use crate::dual::acked_ids;

impl Drill {
    pub(super) fn one_down(&mut self) -> Result<String> {
        let [one, _] = self.others()?;
        self.topic.kafka(&format!("kill {one}"))?;
        let killed = Instant::now();
        std::thread::sleep(Duration::from_secs(6));
        // Confirms wait until the brokers have found out.
        let first = self.accepted(killed + Duration::from_secs(4), PATIENCE)?;
        let gap = (first.sent + first.took).duration_since(killed);
        self.topic.kafka(&format!("start {one}"))?;
        self.drained()?;
        Ok(format!("accepting with two ({gap:.1?} after the kill)"))
    }

    /// Both brokers that do not lead are killed; when.
    pub(super) fn two_away(&mut self) -> Result<Instant> {
        for broker in self.others()? {
            self.topic.kafka(&format!("kill {broker}"))?;
        }
        Ok(Instant::now())
    }

    pub(super) fn two_down(&mut self) -> Result<String> {
        let [one, other] = self.others()?;
        let killed = self.two_away()?;
        let busy = BusyMark::now();
        std::thread::sleep(OPENS_WITHIN + Duration::from_secs(4));
        let refused = self.all_refused(killed, &busy)?;
        std::thread::scope(|scope| {
            let starting = scope.spawn(|| self.topic.kafka(&format!("start {one} {other}")));
            let back = self.back();
            match starting.join() {
                Ok(started) => started?,
                Err(_) => bail!("panicked"),
            };
            Ok(format!("{refused}; {}", back?))
        })
    }

    pub(super) fn leader_moved(&mut self) -> Result<String> {
        let leader = self.leader()?;
        self.topic.kafka(&format!("stop {leader}"))?;
        let moved = Instant::now();
        let first = self.accepted(moved, Duration::from_secs(15))?;
        let gap = (first.sent + first.took).duration_since(moved);
        self.topic.kafka(&format!("start {leader}"))?;
        self.drained()?;
        Ok(format!(
            "accepting {gap:.1?} after broker {leader} had stopped"
        ))
    }

    pub(super) fn follower_hung(&mut self) -> Result<String> {
        let [one, _] = self.others()?;
        self.topic.kafka(&format!("pause {one}"))?;
        let hung = Instant::now();
        std::thread::sleep(Duration::from_secs(6));
        let first = self.accepted(hung + Duration::from_secs(4), PATIENCE)?;
        let gap = (first.sent + first.took).duration_since(hung);
        self.topic.kafka(&format!("resume {one}"))?;
        self.drained()?;
        Ok(format!("accepting {gap:.1?} after broker {one} hung"))
    }

    pub(super) fn all_paused(&mut self) -> Result<String> {
        for n in 1..=3 {
            self.topic.kafka(&format!("pause {n}"))?;
        }
        let (paused, busy) = (Instant::now(), BusyMark::now());
        std::thread::sleep(Duration::from_secs(self.plan.paused_s) + OPENS_WITHIN);
        let refused = self.all_refused(paused, &busy)?;
        for n in 1..=3 {
            self.topic.kafka(&format!("resume {n}"))?;
        }
        Ok(format!("{refused}; {}", self.back()?))
    }

    pub(super) fn record_too_large(&mut self) -> Result<String> {
        self.topic.topic("set", "max.message.bytes=65536")?;
        std::thread::sleep(Duration::from_secs(1));
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let body = crate::ledger::body(number, 150_000);
        self.ledger.sending(number, &body, None);
        let began = Instant::now();
        let answer = crate::client::post(&mut None, self.node.address(), None, &body)?;
        self.ledger.ended(number, Some(answer.clone()));
        if answer.status != 503 {
            bail!("a record over the limit is answered {answer:?}");
        }
        let end = Instant::now() + PATIENCE;
        while self.intake()?["stuck"] != 1 {
            if Instant::now() > end {
                bail!("not stuck: {}", self.intake()?);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        let harmed = self
            .prober
            .since(began)
            .iter()
            .filter(|s| s.status != 201)
            .count();
        self.topic.topic("set", "max.message.bytes=12000000")?;
        self.drained()?;
        if harmed > 0 {
            bail!("{harmed} neighbours were not acked");
        }
        Ok("503, stuck, neighbours unharmed, completed under the old limit".into())
    }

    /// Ends the node and starts it again while two brokers are away.
    pub(super) fn boot_without_brokers(&mut self) -> Result<String> {
        let [one, other] = self.others()?;
        self.node.kill()?;
        if let Some(load) = self.load.take() {
            load.stop();
        }
        self.two_away()?;
        self.node = self.node_plan.start(&[DUAL])?;
        std::thread::sleep(Duration::from_secs(3));
        if self.node.has_ended()? {
            bail!("the node ended:\n{}", log_tail(&self.node_plan.log_file()));
        }
        self.topic.kafka(&format!("start {one} {other}"))?;
        let again = self.serving_again()?;
        Ok(format!("waited, then ready; {again} hooks sent again"))
    }

    /// The node was started again: ready, under load, nothing pending.
    pub(super) fn serving_again(&mut self) -> Result<usize> {
        until_ready(&mut self.node, &self.node_plan)?;
        let again = send_again(&self.ledger, self.node.address(), 600)?;
        let numbers = Arc::clone(&self.numbers);
        self.prober = Prober::start(self.node.address(), self.ledger.clone(), numbers);
        self.load();
        self.accepted(Instant::now(), PATIENCE)?;
        self.drained()?;
        Ok(again)
    }

    /// The node is killed, and the topic drops all that it holds before the node is back: more than
    /// its offset has covered. Its own store has it all the same.
    pub(super) fn retention_passed(&mut self) -> Result<String> {
        self.node.kill()?;
        if let Some(load) = self.load.take() {
            load.stop();
        }
        let head = self.topic.head(self.partition)?;
        let partition = self.partition;
        self.topic.topic("trim", &format!("{partition} {head}"))?;
        self.before = acked_ids(&self.ledger);
        self.node = self.node_plan.start(&[DUAL])?;
        let again = self.serving_again()?;
        let log = std::fs::read_to_string(self.node_plan.log_file())?;
        let said = log.lines().rfind(|line| line.contains("reaches back"));
        let said = said.map_or("", |_| ", said so");
        Ok(format!(
            "ready with {head} records gone{said}; {again} hooks sent again"
        ))
    }

    pub(super) fn topic_recreated(&mut self) -> Result<String> {
        // What is still in the store: the hooks of the paused sink.
        let rows = self.ledger.rows();
        let acked = rows.values().filter(|row| row.key.is_none());
        let done = acked.filter_map(|row| row.acked().map(str::to_owned));
        let done: BTreeSet<String> = done.collect();
        self.topic.topic("delete", "")?;
        let deleted = Instant::now();
        std::thread::sleep(Duration::from_secs(2));
        self.topic.topic("create", "")?;
        // Acked while the topic was going away and delivered since: as good as before.
        self.accepted(deleted + Duration::from_secs(2), 2 * PATIENCE)?;
        let rows = self.ledger.rows();
        let unkeyed = rows.values().filter(|row| row.key.is_none());
        let now: BTreeSet<String> = unkeyed
            .filter_map(|r| r.acked().map(str::to_owned))
            .collect();
        self.before = done.union(&now).cloned().collect();
        let end = Instant::now() + 3 * PATIENCE;
        while self.all_in_topic().is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_secs(1));
        }
        Ok("everything local is in the new topic".into())
    }

    /// Two settings turn bad at once: the node is unready and names both, then one, then none.
    pub(super) fn setting_changed(&mut self) -> Result<String> {
        let (replicas, retention) = ("min.insync.replicas", "retention.ms");
        self.topic
            .topic("set", &format!("{replicas}=1 {retention}=60000"))?;
        let changed = Instant::now();
        self.unready_for(&[replicas, retention], &[])?;
        let unready = changed.elapsed();
        self.topic.topic("set", &format!("{replicas}=2"))?;
        self.unready_for(&[retention], &[replicas])?;
        self.topic.topic("set", &format!("{retention}=604800000"))?;
        until_ready(&mut self.node, &self.node_plan)?;
        self.accepted(Instant::now(), PATIENCE)?;
        Ok(format!(
            "unready after {unready:.0?} with both named, ready again"
        ))
    }

    /// Waits until the node is unready and its reason has these words and not those.
    pub(super) fn unready_for(&self, with: &[&str], without: &[&str]) -> Result<()> {
        let end = Instant::now() + 2 * PATIENCE;
        loop {
            let said = self.intake()?["reason"].to_string();
            let has = |word: &&str| said.contains(*word);
            if !self.node.is_ready() && with.iter().all(has) && !without.iter().any(has) {
                return Ok(());
            }
            if Instant::now() > end {
                bail!("{with:?} should be named and {without:?} not: {said}");
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}
