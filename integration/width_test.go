package integration

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"culvert/integration/need"
)

// Columns of a line, with 4 for a tab: two versions fit on a screen side by side.
const (
	codeColumns    = 120 // also of tables and drawings in comments
	commentColumns = 100
)

// TestWidth: lines of Go are no longer than agreed. A string that crosses the limit is an
// exception, because it cannot be cut.
func TestWidth(t *testing.T) {
	seen := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "dist"):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go"):
			return nil
		}
		seen++
		src, err := os.ReadFile(path)
		need.NoError(t, err)
		within := stringsOf(src)
		number, offset := 0, 0
		for line := range strings.Lines(string(src)) {
			start := offset
			number, offset = number+1, offset+len(line)
			line = strings.TrimSuffix(line, "\n")
			limit := codeColumns
			text := strings.TrimLeft(line, "\t")
			if strings.HasPrefix(text, "//") && !strings.HasPrefix(text, "//\t") {
				limit = commentColumns
			}
			if n := columns(line); n > limit && !within(start+beyond(line, limit)) {
				t.Errorf("%s, line %d: %d columns, at most %d are allowed", path, number, n, limit)
			}
		}
		return nil
	})
	need.NoError(t, err)
	if seen < 500 {
		t.Errorf("%d files, want all of the tree", seen)
	}
}

// TestWidthRefuses: what is too long is found, and a string that crosses the limit is not.
func TestWidthRefuses(t *testing.T) {
	long := strings.Repeat("x", codeColumns)
	for _, tt := range []struct {
		line   string
		string bool // crosses the limit
	}{
		{"\tf(" + long + ")", false},
		{"\tf(\"" + long + "\")", true},
		{"\tf(`" + long + "\n`)", true},
		{"\tf(\"a\", " + long + ", \"b\")", false},
		{"\tf() // \"" + long + "\"", false},
	} {
		line, _, _ := strings.Cut(tt.line, "\n")
		src := "package p\n\nfunc g() {\n" + tt.line + "\n}\n"
		at := strings.Index(src, line) + beyond(line, codeColumns)
		if got := stringsOf([]byte(src))(at); got != tt.string || columns(line) <= codeColumns {
			t.Errorf("%s: %d columns, a string at the limit: %v, want %v", line, columns(line), got, tt.string)
		}
	}
}

func columns(line string) int { return utf8.RuneCountInString(line) + 3*strings.Count(line, "\t") }

// beyond returns the offset of a line's first character beyond a limit.
func beyond(line string, limit int) int {
	for i := range line {
		if columns(line[:i]) >= limit {
			return i
		}
	}
	return len(line)
}

// stringsOf returns a function that reports whether a string literal is at an offset.
func stringsOf(src []byte) func(offset int) bool {
	in := make(map[int]bool)
	file := token.NewFileSet().AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, 0)
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return func(offset int) bool { return in[offset] }
		}
		if tok == token.STRING {
			at := file.Offset(pos)
			end := at + len(lit)
			for end < len(src) && strings.IndexByte("),}]; +", src[end]) >= 0 { // with what closes the call
				end++
			}
			for ; at < end; at++ {
				in[at] = true
			}
		}
	}
}
