package main

import (
	"fmt"
	"strings"
)

// manual returns the pages of a program and of its commands, made of what --help prints.
func (r *release) manual(name string) ([]file, error) {
	return r.pages(name, "", nil)
}

func (r *release) pages(name, short string, path []string) ([]file, error) {
	help, err := output(r.own(name), append(path[:len(path):len(path)], "--help")...)
	if err != nil {
		return nil, err
	}
	about, sections := parseHelp(string(help))
	title := strings.Join(append([]string{name}, path...), "-")
	if short == "" {
		short, _, _ = strings.Cut(about, "\n\n")
	}
	p := new(page)
	p.line(`.TH "%s" 1 "%s" "culvert %s" ""`, strings.ToUpper(title), r.made.Format("2006-01-02"), r.version)
	p.line(".SH NAME\n%s %s %s", escape(title), `\-`, escape(strings.Join(strings.Fields(short), " ")))
	all := []file{{}} // this page, then those of commands
	for _, s := range sections {
		p.line(".SH %s", escape(strings.ToUpper(strings.ReplaceAll(s.head, "Usage", "Synopsis"))))
		switch s.head {
		case "Usage", "Examples":
			p.line(".nf")
			p.text(s.text)
			p.line(".fi")
		default:
			for _, row := range rows(s.text) {
				p.line(".TP\n.B %s", escape(row[0]))
				p.text(row[1])
			}
		}
		if s.head == "Usage" {
			p.line(".SH DESCRIPTION")
			for paragraph := range strings.SplitSeq(about, "\n\n") {
				p.line(".PP")
				p.text(paragraph)
			}
		}
		if s.head != "Commands" {
			continue
		}
		for _, row := range rows(s.text) {
			if row[0] == "lab" { // which is culvert-lab
				continue
			}
			below, err := r.pages(name, row[1], append(path[:len(path):len(path)], row[0]))
			if err != nil {
				return nil, err
			}
			all = append(all, below...)
		}
	}
	all[0] = file{title + ".1", 0o644, []byte(p.String())}
	return all, nil
}

type section struct{ head, text string }

// parseHelp splits what --help prints into what a command does and the sections after it, without
// the advice at the end.
func parseHelp(help string) (about string, sections []section) {
	for line := range strings.Lines(help) {
		head, isHead := strings.CutSuffix(strings.TrimSpace(line), ":")
		switch n := len(sections); {
		case isHead && (n > 0 || head == "Usage") && !strings.HasPrefix(line, " "):
			sections = append(sections, section{head: head})
		case n == 0:
			about += line
		case strings.HasPrefix(line, " "):
			sections[n-1].text += line
		}
	}
	return strings.TrimSpace(about), sections
}

// rows splits a table of names and texts. A text that does not fit continues in the next lines.
func rows(table string) (all [][2]string) {
	for line := range strings.Lines(table) {
		text := strings.TrimSpace(line)
		indent := len(line) - len(strings.TrimLeft(line, " "))
		if n := len(all); indent > 6 && n > 0 || indent == 6 && !strings.HasPrefix(text, "-") {
			all[n-1][1] += " " + text
			continue
		}
		name, rest, _ := strings.Cut(text, "  ")
		all = append(all, [2]string{name, strings.TrimSpace(rest)})
	}
	return all
}

type page struct{ strings.Builder }

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// text adds lines that troff does not take for requests.
func (p *page) text(text string) {
	for line := range strings.Lines(text) {
		line = escape(strings.TrimRight(line, "\n"))
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			line = `\&` + line
		}
		p.line("%s", line)
	}
}

func escape(text string) string { return strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text) }
