package services

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"

	"github.com/sirupsen/logrus"

	"culvert/gateway/state"
)

// A node saves the last state from Kubernetes as lines of text: savedHead, the Config without its
// Services, one Service per line, and savedTail with the CRC-32C of the lines before it.
const (
	savedHead = "culvert services, version 1\n"
	savedTail = "crc %08x\n"

	savedBurst = 64       // Services between two pauses: less than a millisecond
	maxSaved   = 64 << 20 // bytes; the file's content is not trusted
)

var savedSum = crc32.MakeTable(crc32.Castagnoli)

// base returns the part of c that does not come from Kubernetes, without addresses that base lacks.
func (c *Config) base(addresses bool) Config {
	b := *c
	b.Services, b.Answers, b.TakeOver = nil, nil, false
	if !addresses {
		b.Addresses = nil
	}
	return b
}

// save writes c to w.
func (c *Config) save(w io.Writer, pause func()) error {
	sum := crc32.New(savedSum)
	out := bufio.NewWriter(w)
	lines := json.NewEncoder(io.MultiWriter(out, sum))
	io.WriteString(io.MultiWriter(out, sum), savedHead)
	err := lines.Encode(c.base(true))
	for i := range c.Services {
		if i%savedBurst == savedBurst-1 {
			pause()
		}
		err = errors.Join(err, lines.Encode(&c.Services[i]))
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, savedTail, sum.Sum32())
	return out.Flush()
}

// load is the inverse of save.
func load(r io.Reader) (*Config, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxSaved+1))
	if err != nil {
		return nil, err
	}
	body, tail := text, ""
	if i := bytes.LastIndexByte(bytes.TrimSuffix(text, []byte("\n")), '\n'); i >= 0 {
		body, tail = text[:i+1], string(text[i+1:])
	}
	if tail != fmt.Sprintf(savedTail, sumOf(crc32.New(savedSum), body)) {
		return nil, state.ErrDamaged
	}
	rest, known := bytes.CutPrefix(body, []byte(savedHead))
	if !known {
		return nil, state.ErrNewer
	}
	c := new(Config)
	lines := json.NewDecoder(bytes.NewReader(rest))
	if err := lines.Decode(c); err != nil {
		return nil, fmt.Errorf("%w: %w", state.ErrDamaged, err)
	}
	for lines.More() {
		var s Service
		if err := lines.Decode(&s); err != nil {
			return nil, fmt.Errorf("%w: %w", state.ErrDamaged, err)
		}
		c.Services = append(c.Services, s)
	}
	return c, nil
}

func sumOf(h hash.Hash32, b []byte) uint32 {
	h.Write(b)
	return h.Sum32()
}

// writeServices saves the state from Kubernetes, if it has changed since the last write.
func (k *keeper) writeServices(s *Server, pause func()) {
	s.mu.Lock()
	c := s.config
	s.mu.Unlock()
	if c.Which == "" || c == k.services {
		return
	}
	if k.Write(func(d *state.Dir) error {
		return d.KeepServices(func(w io.Writer) error { return c.save(w, pause) })
	}) == nil {
		k.services = c
	}
}

// Saved returns what the previous run served, if base has not changed and no process serves here;
// nil: nothing usable was saved.
func Saved(base *Config, log logrus.FieldLogger) *Config {
	if base.State == "" {
		return nil
	}
	dir, err := state.Open(base.State, base.Interface)
	if err != nil {
		return nil // New reports it
	}
	defer dir.Close()
	f, err := dir.Services()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var c *Config
	if err == nil {
		defer f.Close()
		c, err = load(f)
	}
	if err != nil {
		log.WithError(err).Warn(
			"services.state: the Services of the previous run cannot be read: the API server says what they are")
		return nil
	}
	given := len(base.Addresses) > 0
	before, e1 := json.Marshal(c.base(given))
	now, e2 := json.Marshal(base.base(given))
	if e1 != nil || e2 != nil || !bytes.Equal(before, now) || len(c.Addresses) == 0 {
		return nil // another file, or another --services
	}
	all := *base
	all.Addresses, all.Services = c.Addresses, c.Services
	return &all
}

// Forget removes what Saved would return.
func Forget(base *Config) error {
	dir, err := state.Open(base.State, base.Interface)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.ForgetServices()
}
