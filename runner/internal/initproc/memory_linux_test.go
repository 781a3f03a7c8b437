package initproc

import (
	"slices"
	"testing"
)

const static = `00400000-0068e000 r-xp 00000000 fe:00 1001                /a b/runner
0068e000-00932000 r--p 0028e000 fe:00 1001                /a b/runner
00932000-00956000 rw-p 00532000 fe:00 1001                /a b/runner
00956000-0298d000 rw-p 00000000 00:00 0
3f882c000000-3f882f000000 ---p 00000000 00:00 0
7fab053ee000-7fab053f0000 r-xp 00000000 00:00 0           [vdso]
`

func TestWhatAStaticProgramNeverWroteIsFound(t *testing.T) {
	want := []memoryRange{{0x400000, 0x28e000}, {0x68e000, 0x2a4000}}
	if got := programRanges([]byte(static)); !slices.Equal(got, want) {
		t.Errorf("%x, not %x", got, want)
	}
}

// Tables of addresses are written by the loader and made constant after that.
func TestAProgramWithLibrariesHasNothingToForget(t *testing.T) {
	library := "7fab053e8000-7fab053ec000 r--p 00000000 fe:00 77     /lib/libc.so.6\n"
	if got := programRanges([]byte(static + library)); got != nil {
		t.Errorf("%x", got)
	}
}

func TestMapsOfAnotherFormSayNothing(t *testing.T) {
	for _, line := range []string{"nonsense\n", "g-h r-xp 0 fe:00 1001 /x\n", "9-5 r-xp 0 fe:00 1001 /x\n"} {
		if got := programRanges([]byte(line)); got != nil {
			t.Errorf("%q: %x", line, got)
		}
	}
}
