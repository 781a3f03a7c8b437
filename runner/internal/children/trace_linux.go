package children

// recordStop is called by the reaper when a child has stopped: a traced child has reached its exec.
func (t *Table) recordStop(pid int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.inflight) > 0 {
		t.traced[pid] = true
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// AwaitStop waits until pid has stopped or ended.
func (t *Table) AwaitStop(pid int, c *Command) {
	t.Wake()
	for {
		t.mu.Lock()
		stopped := t.traced[pid]
		_, ended := t.earlyStatus(pid, c)
		delete(t.traced, pid)
		changed := t.changed
		t.mu.Unlock()
		if stopped || ended {
			return
		}
		<-changed
	}
}
