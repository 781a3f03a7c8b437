package gpus

import (
	"fmt"
	"io"
)

// Claims are GPUs that no other slot of the host gets before they are closed.
type Claims []io.Closer

// Release gives the GPUs back.
func (c Claims) Release() {
	for _, each := range c {
		_ = each.Close()
	}
}

// Claim takes n of these GPUs for a slot. Runners in separate network namespaces do not see each
// other's claims.
func Claim(gpus []GPU, n int) (own []GPU, claims Claims, err error) {
	for _, gpu := range gpus {
		if len(own) == n {
			break
		}
		if held := claim(gpu.Nodes[0]); held != nil {
			own, claims = append(own, gpu), append(claims, held)
		}
	}
	if len(own) < n {
		claims.Release()
		return nil, nil, fmt.Errorf("gpus: %d of the %d GPUs are free, and a slot needs %d: other slots of this host "+
			"have them (%s)", len(own), len(gpus), n, describe(gpus))
	}
	return own, claims, nil
}
