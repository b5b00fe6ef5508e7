package bench

import (
	"testing"

	"culvert/integration/need"
)

// The tests make network namespaces, so TestMain runs them in a child that may,
// as root or through a user namespace.
func TestMain(m *testing.M) { need.TestsInNamespace(m) }
