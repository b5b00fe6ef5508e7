package need

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"culvert/integration/fresh"
)

// insideEnv is set in the process that TestsInNamespace starts.
const insideEnv = "CULVERT_TEST_NAMESPACE"

// TestsInNamespace is a TestMain for a package whose tests change links and routes: it runs them
// all in a child with its own network namespace, as root or through a user namespace. If that is
// impossible, they run without, and Namespace skips.
func TestsInNamespace(m *testing.M) {
	if os.Getenv(insideEnv) != "" {
		if err := fresh.Network(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	child := func(flags uintptr) (*exec.Cmd, error) {
		cmd := Self(os.Args[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), insideEnv+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | flags, Pdeathsig: syscall.SIGKILL}
		if flags != 0 {
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		}
		return cmd, cmd.Start()
	}
	cmd, err := child(0)
	if err != nil {
		cmd, err = child(syscall.CLONE_NEWUSER)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "no network namespace for the tests:", err)
		os.Exit(m.Run())
	}
	err = cmd.Wait()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	os.Exit(0)
}

// Namespace skips a test of such a package if there is no namespace of its own.
func Namespace(t testing.TB) {
	t.Helper()
	if os.Getenv(insideEnv) == "" {
		Kernel(t, "namespace", errors.New("clone was refused, see the first line of the output"))
	}
}
