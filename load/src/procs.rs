//! What processes cost: CPU and memory of process trees, and the CPU that belongs to nobody measured.

use std::collections::HashMap;
use std::fs;

/// A process and its descendants at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tree {
    /// Seconds of CPU that it has used.
    pub cpu: f64,
    /// Resident bytes.
    pub memory: u64,
}

struct Process {
    parent: u32,
    ticks: u64,
    pages: u64,
}

/// All processes at one moment.
pub struct Snapshot {
    processes: HashMap<u32, Process>,
    /// Seconds of CPU that the machine has used, taken by other guests included.
    pub busy: f64,
}

impl Snapshot {
    /// Looks at all processes.
    pub fn take() -> Self {
        let mut processes = HashMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(id) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            // It may have ended since.
            if let Some(process) = fs::read_to_string(entry.path().join("stat"))
                .ok()
                .and_then(|text| read(&text))
            {
                processes.insert(id, process);
            }
        }
        Self {
            processes,
            busy: busy().unwrap_or_default(),
        }
    }

    /// A process with everything below it, without the trees of `apart`.
    pub fn tree(&self, root: u32, apart: &[u32]) -> Tree {
        let mut tree = Tree::default();
        for (id, process) in &self.processes {
            if self.is_below(*id, root, apart) {
                tree.cpu += process.ticks as f64 / ticks_per_second();
                tree.memory += process.pages * page_size();
            }
        }
        tree
    }

    fn is_below(&self, mut id: u32, root: u32, apart: &[u32]) -> bool {
        loop {
            if id == root {
                return true;
            }
            if apart.contains(&id) {
                return false;
            }
            match self.processes.get(&id) {
                Some(process) if process.parent != id => id = process.parent,
                _ => return false,
            }
        }
    }
}

/// CPU of children that ended counts for their parent, or a database whose sessions come and go
/// would seem to use none.
fn read(stat: &str) -> Option<Process> {
    // The name is in brackets and may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = fields.get(11..15)?;
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        ticks: ticks
            .iter()
            .filter_map(|text| text.parse::<u64>().ok())
            .sum(),
        pages: fields.get(21)?.parse().ok()?,
    })
}

fn busy() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<u64> = text
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let used = [0, 1, 2, 5, 6, 7];
    let ticks: u64 = used.iter().filter_map(|at| fields.get(*at)).sum();
    Some(ticks as f64 / ticks_per_second())
}

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// Cores of the machine.
pub fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sees_itself() {
        let snapshot = Snapshot::take();
        let me = snapshot.tree(std::process::id(), &[]);
        assert!(me.memory > 1 << 20, "{me:?}");
        assert!(snapshot.busy > 0.0);
        let nothing = snapshot.tree(u32::MAX, &[]);
        assert_eq!(nothing.memory, 0);
    }
}
