package services

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// keeping returns a server without a device that keeps its state in a folder, and its log.
func keeping(t *testing.T, folder string) (*Server, *test.Hook) {
	t.Helper()
	c, err := parse(t)
	need.NoError(t, err)
	c.State = folder
	log, hook := test.NewNullLogger()
	s := &Server{config: c, log: log, began: time.Now()}
	if s.keeper, err = openKeeper(c, log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.keeper.Close)
	if s.engine, err = nat.New(s.keeper.key, &c.plan(c.Addresses, orphans{}).nat); err != nil {
		t.Fatal(err)
	}
	s.keeper.restore(s.engine, s.now())
	return s, hook
}

// connect opens a connection to the node port and returns the port that the endpoint sees.
func connect(t *testing.T, s *Server, from uint16, flags uint8) uint16 {
	t.Helper()
	var p packet.Packet
	p.Parse(nattest.IP{Source: "198.51.100.9", Destination: "172.18.0.2", Body: nattest.TCP{SourcePort: from,
		DestinationPort: 30080, Flags: flags}}.Bytes())
	if v := s.engine.Process(&p, rules.HostLink, s.now()); v.Action != nat.Forward {
		t.Fatalf("dropped for %v", v.Reason)
	}
	v, err := nattest.Check(p.Bytes())
	need.NoError(t, err)
	return v.SourcePort
}

// A run continues with the connections that the previous one has written, with its key, and without
// the others.
func TestKeeper(t *testing.T) {
	folder := t.TempDir()
	s, hook := keeping(t, folder)
	before := connect(t, s, 4000, nattest.SYN)
	if !s.keeper.stale(s.engine) {
		t.Error("a connection that was not written is not missed")
	}
	s.keeper.write(s.engine, s.now, func() {})
	if s.keeper.stale(s.engine) {
		t.Error("what was written is missed")
	}
	unwritten := connect(t, s, 4001, nattest.SYN)
	if _, err := openKeeper(s.config, logrus.New()); err == nil || !strings.Contains(err.Error(), "services.state") {
		t.Errorf("a second process is told %v", err)
	}
	s.keeper.Close() // like a kill
	if n := len(hook.AllEntries()); n != 0 {
		t.Errorf("%d messages: %v", n, hook.LastEntry())
	}

	s, hook = keeping(t, folder)
	if st := s.engine.Stats(); st.Connections != 1 || st.Restored != 1 {
		t.Errorf("%d connections, %d restored", st.Connections, st.Restored)
	}
	if e := hook.LastEntry(); e == nil || e.Level != logrus.InfoLevel || e.Data["connections"] != 1 {
		t.Errorf("it says %v", e)
	}
	if after := connect(t, s, 4000, nattest.ACK); after != before {
		t.Errorf("the endpoint sees port %d, it saw %d", after, before)
	}
	if after := connect(t, s, 4001, nattest.ACK); after != unwritten {
		t.Errorf("without a record the endpoint sees port %d, it saw %d", after, unwritten)
	}
}

// A run continues with what an earlier version has written: its key, its connections and Services.
func TestKeeperReadsRecorded(t *testing.T) {
	folder := t.TempDir()
	need.NoError(t, os.Mkdir(filepath.Join(folder, DefaultInterface), 0o700))
	for _, file := range []string{"connections", "identity", "services"} {
		text, err := os.ReadFile(filepath.Join("testdata/recorded", DefaultInterface, file))
		need.NoError(t, err)
		need.NoError(t, os.WriteFile(filepath.Join(folder, DefaultInterface, file), text, 0o600))
	}
	s, hook := keeping(t, folder)
	if e := hook.LastEntry(); e == nil || e.Level != logrus.InfoLevel || s.engine.Stats().Restored != 1 {
		t.Errorf("it says %v, and has restored %d connections", e, s.engine.Stats().Restored)
	}
	if port := connect(t, s, 4000, nattest.ACK); port != 62561 {
		t.Errorf("the endpoint sees port %d", port)
	}
	want, err := base64.StdEncoding.DecodeString("v0FCJPEX88voCLw2Jt//0w==")
	if need.NoError(t, err); !bytes.Equal(s.keeper.key[:], want) {
		t.Errorf("the key is %x", s.keeper.key)
	}
	f, err := s.keeper.Dir.Services()
	need.NoError(t, err)
	defer f.Close()
	if c, err := load(f); err != nil || !reflect.DeepEqual(c, savedConfig(t, "/var/lib/culvert")) {
		t.Errorf("its Services are %+v, %v", c, err)
	}
}

// The file may contain anything: that costs connections, and is logged.
func TestKeeperFindsDamage(t *testing.T) {
	for name, damage := range map[string]func(folder string) error{
		"connections": func(folder string) error {
			return os.WriteFile(filepath.Join(folder, "connections"), make([]byte, nat.RecordBlock), 0o600)
		},
		"identity": func(folder string) error {
			return os.WriteFile(filepath.Join(folder, "identity"), []byte("?"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			s, _ := keeping(t, folder)
			connect(t, s, 4000, nattest.SYN)
			s.keeper.end(s)
			need.NoError(t, damage(filepath.Join(folder, DefaultInterface)))
			s, hook := keeping(t, folder)
			warned := false
			for _, e := range hook.AllEntries() {
				warned = warned || e.Level == logrus.WarnLevel
			}
			if !warned {
				t.Error("nothing is said")
			}
			connect(t, s, 4002, nattest.SYN)
			s.keeper.end(s)
			s, hook = keeping(t, folder)
			if e := hook.LastEntry(); e == nil || e.Level != logrus.InfoLevel || s.engine.Stats().Connections == 0 {
				t.Errorf("the run after that: %v, %d connections", e, s.engine.Stats().Connections)
			}
		})
	}
}

// A folder that cannot be used costs only what it is for.
func TestKeeperWithoutFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	need.NoError(t, os.WriteFile(file, nil, 0o600))
	s, hook := keeping(t, file)
	if e := hook.LastEntry(); e == nil || e.Level != logrus.WarnLevel {
		t.Errorf("it says %v", e)
	}
	connect(t, s, 4000, nattest.SYN)
	s.keeper.end(s)
}
