package services

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"culvert/integration/need"
)

// A process that listens in vain is named when it is found, and not again at each change of
// Services.
func TestNameListeners(t *testing.T) {
	s, hook := keeping(t, "")
	at, err := net.Listen("tcp", ":0")
	need.NoError(t, err)
	port := uint16(at.Addr().(*net.TCPAddr).Port)
	s.mu.Lock()
	s.config.Services[0].NodePort = port
	s.mu.Unlock()
	named := func(when string, want int) {
		t.Helper()
		hook.Reset()
		s.mu.Lock()
		s.nameListeners()
		s.mu.Unlock()
		got := 0
		for _, e := range hook.AllEntries() {
			if strings.HasPrefix(e.Message, "a process listens in vain") && e.Data["port"] == port &&
				strings.Contains(fmt.Sprint(e.Data["process"]), fmt.Sprintf("process %d", os.Getpid())) {
				got++
			}
		}
		if got != want {
			t.Errorf("%s, it is named %d times, want %d", when, got, want)
		}
	}
	named("at first", 1)
	named("after a change", 0)
	at.Close()
	named("when it has gone", 0)
	if at, err = net.Listen("tcp", at.Addr().String()); err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	named("when it is back", 1)
}
