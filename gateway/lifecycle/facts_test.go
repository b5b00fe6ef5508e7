package lifecycle

import (
	"testing"
	"time"

	"culvert/gateway/state"
)

// TestAdoptWhileWriting: a standby takes what the active gateway tells it while it writes its table
// to a slow disk. Otherwise it could not take over meanwhile, and would lose its stream.
func TestAdoptWhileWriting(t *testing.T) {
	k := &keeper{Keeper: &state.Keeper{Dir: new(state.Dir)}}
	writing, written := make(chan struct{}), make(chan struct{})
	defer close(written)
	go k.Write(func(*state.Dir) error {
		close(writing)
		<-written
		return nil
	})
	<-writing
	adopted := make(chan struct{})
	go func() {
		defer close(adopted)
		k.adopt(state.Identity{PortKey: state.PortKey{1}})
	}()
	select {
	case <-adopted:
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for the disk")
	}
	if k.known().PortKey != (state.PortKey{1}) {
		t.Error("the key of port choice is not the active gateway's")
	}
}
