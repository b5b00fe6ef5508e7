package exports

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// The limits of a list. They bound what a peer can make this cluster keep.
const (
	MaxServices  = 500    // Labelled ones, and as many others
	MaxEndpoints = 20_000 // of all Services together
	MaxPorts     = 500    // of a Service, and of a Group
	MaxTexts     = 100    // labels of a Service, and as many annotations

	// MaxSize is the largest sum of Service.Size: PeerExports must fit into the 1.5 MiB that etcd
	// accepts.
	MaxSize = 1_400_000
)

const (
	maxLabel = 63 // bytes of a name, as of a DNS label (RFC 1035, Section 2.3.4)
	groupID  = 8  // bytes
)

// Size returns at least as many bytes as the Service needs in PeerExports.
func (s *Service) Size() (n int) {
	for key, content := range s.records() {
		n += size(key, content)
	}
	return n
}

// size returns the share of a record in PeerExports, in bytes. It is more than the record needs in
// a message.
func size(key, content string) int {
	switch rest := len(key) - owner(key); rest {
	case 0:
		return 48 + len(key) + len(content) // names and values of metadata
	case groupID:
		return 32 + len(content)
	default:
		n := 28 + 2*(rest-groupID-4) + len(content) // {"ip":"255.255.255.255"},
		if len(content) > 1 {
			n += len(`,"host":""`)
		}
		if content[0] != 0 {
			n += len(`,"state":"terminating"`)
		}
		return n
	}
}

// states has the states of endpoints in the order of their numbers.
var states = []string{Ready, NotReady, Serving, Terminating}

// key returns the key of the record about a Service as a whole, with which the keys of its other
// records begin.
func (s *Service) key() string {
	kind := byte(0)
	if s.Type == Labelled {
		kind = 1
	}
	b := append([]byte{kind, byte(len(s.Namespace))}, s.Namespace...)
	return string(append(append(b, byte(len(s.Name))), s.Name...))
}

// owner returns the length of the key of a record's Service.
func owner(key string) int {
	n := 2 + int(key[1])
	return n + 1 + int(key[n])
}

// records returns the Service's records by key.
func (s *Service) records() map[string]string {
	head, key := *s, s.key()
	head.Namespace, head.Name, head.Endpoints = "", "", nil
	all := map[string]string{key: encoded(head)}
	for i := range s.Endpoints {
		g := &s.Endpoints[i]
		ports := encoded(g.Ports)
		id := sha256.Sum256([]byte(ports))
		group := key + string(id[:groupID])
		all[group] = ports
		for _, e := range g.Addresses {
			all[group+string(e.IP.AsSlice())] = string(byte(slices.Index(states, e.State))) + e.Host
		}
	}
	return all
}

func encoded(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // unreachable: a Service is texts, numbers and a time of this era
	}
	return string(b)
}

// Check returns why no list may have the Service.
func (s *Service) Check() error {
	for key, content := range s.records() {
		if err := cmp.Or(checkKey(key), checkContent(key, content)); err != nil {
			return err
		}
	}
	return nil
}

func checkKey(key string) error {
	if len(key) < 2 || len(key) < 3+int(key[1]) || len(key) < owner(key) || key[0] > 1 {
		return errEnd
	}
	if n := max(key[1], key[2+int(key[1])]); n > maxLabel {
		return fmt.Errorf("a name of %d bytes; at most %d are possible", n, maxLabel)
	}
	switch len(key) - owner(key) {
	case 0, groupID, groupID + 4, groupID + 16:
		return nil
	}
	return errEnd
}

func checkContent(key, content string) error {
	switch len(key) - owner(key) {
	case 0:
		s := &Service{}
		if err := s.read(content); err != nil {
			return err
		}
		if (s.Type == Labelled) != (key[0] == 1) {
			return fmt.Errorf("a Service of type %s where none is", s.Type)
		}
	case groupID:
		_, err := readPorts(content)
		return err
	default:
		if len(content) == 0 || int(content[0]) >= len(states) {
			return errors.New("an endpoint without a state")
		}
		if n := len(content) - 1; n > maxLabel {
			return fmt.Errorf("a name of %d bytes; at most %d are possible", n, maxLabel)
		}
	}
	return nil
}

// errEnd means that a message ends too early or too late.
var errEnd = errors.New("its lengths do not add up")

// read reads the record about a Service as a whole.
func (s *Service) read(content string) error {
	if err := json.Unmarshal([]byte(content), s); err != nil {
		return fmt.Errorf("an unreadable Service: %.200s", err.Error())
	}
	s.Created, s.Endpoints = s.Created.UTC().Truncate(time.Second), nil
	if year := s.Created.Year(); year < 0 || year > 9999 {
		return fmt.Errorf("a Service of the year %d", year)
	}
	if len(s.Labels) > MaxTexts || len(s.Annotations) > MaxTexts {
		return fmt.Errorf("a Service with more than %d labels or annotations", MaxTexts)
	}
	switch s.Type {
	case ClusterSetIP, Headless, Labelled:
	default:
		return fmt.Errorf("a Service of type %.20q", s.Type)
	}
	return checkPorts(s.Ports)
}

func readPorts(content string) (all []Port, err error) {
	if err = json.Unmarshal([]byte(content), &all); err != nil {
		return nil, fmt.Errorf("unreadable ports: %.200s", err.Error())
	}
	return all, checkPorts(all)
}

func checkPorts(all []Port) error {
	if len(all) > MaxPorts {
		return fmt.Errorf("a Service with %d ports; at most %d are possible", len(all), MaxPorts)
	}
	return nil
}

// A list is the records of all Services. The zero list is unusable.
type list struct {
	services  map[string]*entry // by the key of the Service
	hash      hash
	labelled  int // Services
	endpoints int
	size      int
}

// An entry is the records of a Service.
type entry struct {
	records map[string]string // by the rest of the key
	service *Service          // what they say; nil: not read since they have changed
}

// newList returns an empty list. Its hash is not that of a gateway without a list.
func newList() *list { return &list{services: map[string]*entry{}, hash: hash{1}} }

func (l *list) at(key string) (content string, there bool) {
	n := owner(key)
	if e := l.services[key[:n]]; e != nil {
		content, there = e.records[key[n:]]
	}
	return content, there
}

// set puts a record into the list, or takes it out.
func (l *list) set(c change) {
	n := owner(c.key)
	e := l.services[c.key[:n]]
	if was, there := l.at(c.key); there {
		l.count(c.key, was, -1)
		delete(e.records, c.key[n:])
	}
	if !c.gone {
		if e == nil {
			e = &entry{records: map[string]string{}}
			l.services[c.key[:n]] = e
			l.labelled += int(c.key[0])
		}
		l.count(c.key, c.content, 1)
		e.records[c.key[n:]] = c.content
	}
	if e == nil {
		return
	}
	if e.service = nil; len(e.records) == 0 {
		delete(l.services, c.key[:n])
		l.labelled -= int(c.key[0])
	}
}

// count adds a record to the sums, or takes it from them.
func (l *list) count(key, content string, sign int) {
	l.size += sign * size(key, content)
	if len(key)-owner(key) > groupID {
		l.endpoints += sign
	}
	b := append(make([]byte, 0, 256), byte(len(key)))
	sum := sha256.Sum256(append(append(b, key...), content...))
	for i := range l.hash {
		l.hash[i] ^= sum[i]
	}
}

// apply makes changes, unless the list would not be the one with a hash, or break a limit.
func (l *list) apply(all []change, want hash) error {
	undo := make([]change, len(all))
	for i, c := range all {
		was, there := l.at(c.key)
		undo[i] = change{c.key, was, !there}
		l.set(c)
	}
	err := error(nil)
	switch {
	case l.hash != want:
		err = errors.New("it has another hash than it says")
	case l.labelled > MaxServices, len(l.services)-l.labelled > MaxServices:
		err = fmt.Errorf("it has more than %d Services", MaxServices)
	case l.endpoints > MaxEndpoints:
		err = fmt.Errorf("it has more than %d endpoints", MaxEndpoints)
	case l.size > MaxSize:
		err = fmt.Errorf("it has more than %d bytes", MaxSize)
	default:
		return nil
	}
	for _, c := range slices.Backward(undo) {
		l.set(c)
	}
	return err
}

// read returns the Services. Those that have not changed since the last call are the same.
func (l *list) read() []*Service {
	all := []*Service{}
	for key, e := range l.services {
		if e.service == nil {
			e.service = e.read(key)
		}
		if e.service.Type != "" {
			all = append(all, e.service)
		}
	}
	slices.SortFunc(all, func(a, b *Service) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
			strings.Compare(a.Type, b.Type))
	})
	return all
}

// read reads a Service. It is without a type if the record about it as a whole is missing, and
// leaves out endpoints without ports.
func (e *entry) read(key string) *Service {
	s := &Service{}
	if head, ok := e.records[""]; !ok || s.read(head) != nil { // check has found no error
		return s
	}
	n := 2 + int(key[1])
	s.Namespace, s.Name = key[2:n], key[n+1:]
	var g *Group
	id := ""
	for _, rest := range slices.Sorted(maps.Keys(e.records)) {
		content := e.records[rest]
		switch {
		case rest == "":
		case len(rest) == groupID:
			ports, _ := readPorts(content) // check has found no error
			s.Endpoints = append(s.Endpoints, Group{Ports: ports})
			g, id = &s.Endpoints[len(s.Endpoints)-1], rest
		case g != nil && rest[:groupID] == id:
			ip, _ := netip.AddrFromSlice([]byte(rest[groupID:]))
			g.Addresses = append(g.Addresses, Endpoint{ip, content[1:], states[content[0]]})
		}
	}
	return s
}

// changes returns all records, as changes of an empty list.
func (l *list) changes() (all []change) {
	for key, e := range l.services {
		for rest, content := range e.records {
			all = append(all, change{key: key + rest, content: content})
		}
	}
	return all
}

// A change puts a record into a list, or takes it out.
type change struct {
	key, content string
	gone         bool
}

// encode returns changes in the format of messages, and sorts them.
func encode(all []change) (b []byte) {
	slices.SortFunc(all, func(a, b change) int { return strings.Compare(a.key, b.key) })
	last := ""
	for _, c := range all {
		same := 0
		for same < len(last) && same < len(c.key) && last[same] == c.key[same] {
			same++
		}
		b = append(append(b, byte(same), byte(len(c.key)-same)), c.key[same:]...)
		if last = c.key; c.gone {
			b = append(b, 0)
			continue
		}
		b = append(binary.AppendUvarint(b, uint64(1+len(c.content))), c.content...)
	}
	return b
}

// decode reads changes. It accepts any bytes, and returns changes or an error.
func decode(b []byte) (all []change, err error) {
	last := ""
	for len(b) > 0 {
		if len(b) < 2 || len(b) < 2+int(b[1]) || int(b[0]) > len(last) {
			return nil, errEnd
		}
		end := 2 + int(b[1])
		c := change{key: last[:b[0]] + string(b[2:end])}
		if c.key <= last {
			return nil, errors.New("its records are not in order")
		}
		if err := checkKey(c.key); err != nil {
			return nil, err
		}
		n, size := binary.Uvarint(b[end:])
		if size <= 0 || n > uint64(len(b)-end-size+1) {
			return nil, errEnd
		}
		b, last = b[end+size:], c.key
		if c.gone = n == 0; !c.gone {
			c.content, b = string(b[:n-1]), b[n-1:]
			if err := checkContent(c.key, c.content); err != nil {
				return nil, err
			}
		}
		all = append(all, c)
	}
	return all, nil
}
