package gather

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"culvert/gateway/control"
)

// An Archive is what was collected.
type Archive struct {
	Begun   time.Time
	Entries []Entry
	Missing []Missing
}

// An Entry is a file of an archive.
type Entry struct {
	Place []string // folders, which have names of others: a context, a namespace, a pod
	File  string   // culvert's own words: NAME.json, or NAME.log
	Data  []byte
}

// Missing is what an archive lacks.
type Missing struct {
	Place []string `json:"place"`
	What  string   `json:"what"` // culvert's own words
	Why   string   `json:"why"`
}

// String is a sentence without a period.
func (m *Missing) String() string {
	return strings.Join(append(slices.Clone(m.Place), m.What), ": ") + ": " + m.Why
}

// The Contents of an archive are its first file.
type Contents struct {
	Culvert    control.Version `json:"culvert"` // that has made it
	Begun      time.Time       `json:"begun"`
	Anonymised bool            `json:"anonymised"`
	Missing    []Missing       `json:"missing"`
	Files      []string        `json:"files"`
}

// contents is the file of the Contents.
const contents = "contents.json"

// Add adds a file.
func (a *Archive) Add(file string, data []byte, place ...string) {
	a.Entries = append(a.Entries, Entry{place, file, data})
}

// AddJSON adds v as JSON.
func (a *Archive) AddJSON(file string, v any, place ...string) {
	data, err := json.Marshal(v)
	if err != nil {
		a.Miss(file, err, place...)
		return
	}
	a.Add(file, data, place...)
}

// Miss notes why something is missing.
func (a *Archive) Miss(what string, err error, place ...string) {
	a.Missing = append(a.Missing, Missing{place, what, err.Error()})
}

// Write writes the archive as tar.gz, without secrets. names, which may be nil, makes pseudonyms.
// The same content gives the same bytes, except for pseudonyms.
func (a *Archive) Write(w io.Writer, names *Pseudonyms) error {
	s := &scrubber{names: names, public: map[string]bool{}}
	for i := range a.Entries {
		s.learn(&a.Entries[i])
	}
	c := Contents{Culvert: control.ReadVersion(), Begun: a.Begun, Anonymised: names != nil, Missing: []Missing{}}
	for _, m := range a.Missing {
		s.learnText(m.Why)
		s.learnPlace(m.Place)
	}
	for _, m := range a.Missing {
		c.Missing = append(c.Missing, Missing{s.place(m.Place), m.What, s.text(m.Why)})
	}
	files := map[string][]byte{}
	for i := range a.Entries {
		e := &a.Entries[i]
		name := path.Join(append(s.place(e.Place), e.File)...)
		for n := 2; files[name] != nil; n++ { // two names may have become one
			name = path.Join(append(s.place(e.Place), fmt.Sprintf("%d-%s", n, e.File))...)
		}
		files[name] = s.data(e)
		c.Files = append(c.Files, name)
	}
	slices.Sort(c.Files)
	first, err := json.MarshalIndent(&c, "", "  ")
	if err != nil {
		return err
	}
	files[contents] = append(first, '\n')
	zip := gzip.NewWriter(w)
	t := tar.NewWriter(zip)
	for _, name := range append([]string{contents}, c.Files...) {
		h := &tar.Header{Name: folder + name, Mode: 0o600, Size: int64(len(files[name])),
			ModTime: a.Begun.Truncate(time.Second), Format: tar.FormatPAX}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(files[name]); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), zip.Close())
}

// folder has all files of an archive.
const folder = "culvert-gather/"

// pathSafe makes a name one part of a path.
func pathSafe(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < ' ' || strings.ContainsRune(`/\`, r) {
			return '_'
		}
		return r
	}, name)
	if strings.Trim(name, ".") == "" {
		return "_" + name
	}
	return name
}

// Bounds of what is read: an archive comes from somebody else.
const (
	maxFiles = 100_000
	maxRead  = 1 << 30 // bytes of all files
)

// ErrNoArchive says that a file has another origin.
var ErrNoArchive = errors.New("this is no archive of culvert gather")

// Read reads an archive, and calls each with its files, except the Contents.
func Read(r io.Reader, each func(file string, data []byte) error) (*Contents, error) {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoArchive, err)
	}
	left := &io.LimitedReader{R: zip, N: maxRead}
	t := tar.NewReader(left)
	var c *Contents
	for range maxFiles {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF) && c != nil:
			return c, nil
		case left.N == 0:
			return nil, fmt.Errorf("it has more than %d MiB", maxRead>>20)
		case err != nil:
			return nil, fmt.Errorf("%w: %w", cmp.Or(cutOff(c), ErrNoArchive), err)
		}
		data, err := io.ReadAll(t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", h.Name, err)
		}
		name, ours := strings.CutPrefix(h.Name, folder)
		switch {
		case c == nil && (!ours || name != contents):
			return nil, ErrNoArchive
		case c == nil:
			c = new(Contents)
			err = json.Unmarshal(data, c)
		default:
			err = each(name, data)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil, fmt.Errorf("it has more than %d files", maxFiles)
}

// cutOff returns the error for an archive that ends early.
func cutOff(c *Contents) error {
	if c == nil {
		return nil
	}
	return errors.New("the archive is cut off")
}
