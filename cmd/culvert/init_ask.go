package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"culvert/cmd/internal/cli"
	"culvert/gateway/setup"
)

// ask asks the questions that no flag answers, until each answer is valid.
func (x *initRun) ask(questions []setup.Question) error {
	var errs []error
	ended := false
	for _, q := range questions {
		flag := x.Flags().Lookup(q.Flag)
		switch {
		case x.plan.Here && flag.Changed:
			errs = append(errs, fmt.Errorf("--%s: --here answers it; leave one of them out", q.Flag))
		case x.plan.Here:
			errs = append(errs, x.plan.Answer(q, q.Here))
		case flag.Changed:
			errs = append(errs, x.plan.Answer(q, flag.Value.String()))
		case ended:
			errs = append(errs, x.missing(q))
		case errors.Join(errs...) != nil:
			return errors.Join(errs...) // later questions may depend on these answers
		default:
			err := x.askOne(q)
			if ended = err == io.EOF; ended {
				err = x.missing(q)
			} else if err != nil {
				return err
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// askOne asks until the answer is valid.
func (x *initRun) askOne(q setup.Question) error {
	for {
		line, err := x.prompt(x.plan.Say(q.Text + ", such as " + q.Example))
		if err != nil {
			return err
		}
		if line == "" {
			continue
		}
		if err = x.plan.Answer(q, line); err == nil {
			x.asked = true
			return nil
		}
		fmt.Fprintln(x.ErrOrStderr(), err)
	}
}

func (x *initRun) missing(q setup.Question) error {
	return fmt.Errorf("--%s: missing; %s", q.Flag, x.plan.Say(q.Text))
}

// prompt asks once and returns the line, or io.EOF.
func (x *initRun) prompt(text string) (string, error) {
	fmt.Fprintf(x.ErrOrStderr(), "%s: ", text)
	select {
	case line, ok := <-x.input:
		if !ok {
			fmt.Fprintln(x.ErrOrStderr())
			return "", io.EOF
		}
		return strings.TrimSpace(line), nil
	case <-x.Context().Done():
		fmt.Fprintln(x.ErrOrStderr())
		return "", cli.Failed(errors.New("interrupted"))
	}
}

// readLines returns the lines of in, read in a separate goroutine, because a signal does not
// interrupt a read.
func readLines(in io.Reader) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(in); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	return lines
}

// hear asks for the other side's line until it is valid. ok is false if there is none yet.
func (x *initRun) hear(others []setup.Question) (ok bool, err error) {
	for {
		line, err := x.prompt(
			"the line that culvert init printed at the other side; leave it empty if you do not have it yet")
		if err == io.EOF || line == "" {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		// A server's line contains --endpoint, so that another server notices it.
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.SetOutput(io.Discard)
		for _, q := range append(others[:len(others):len(others)], setup.AskEndpoint) {
			if flags.Lookup(q.Flag) == nil {
				flags.String(q.Flag, "", "")
			}
		}
		if err = flags.Parse(strings.Fields(line)); err == nil && flags.Changed(setup.AskEndpoint.Flag) &&
			x.plan.Side == setup.Server {
			return false, errTwoServers
		}
		if err == nil {
			flags.Visit(func(f *pflag.Flag) { err = errors.Join(err, x.Flags().Set(f.Name, f.Value.String())) })
		}
		if err == nil {
			err = x.answered(others)
		}
		if err == nil {
			return true, nil
		}
		fmt.Fprintln(x.ErrOrStderr(), err)
	}
}

// answered reads the answers to questions from flags. All of them must be given.
func (x *initRun) answered(questions []setup.Question) error {
	var errs []error
	for _, q := range questions {
		flag := x.Flags().Lookup(q.Flag)
		switch {
		case flag.Changed:
			errs = append(errs, x.plan.Answer(q, flag.Value.String()))
		case q.Flag == setup.AskEndpoint.Flag:
			errs = append(errs, errTwoClients)
		default:
			errs = append(errs, fmt.Errorf(
				"--%s: missing; it is in the line that culvert init printed at the other side", q.Flag))
		}
	}
	return errors.Join(errs...)
}
