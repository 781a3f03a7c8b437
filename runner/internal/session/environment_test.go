package session

import (
	"slices"
	"testing"
)

func TestReplacedEnvironment(t *testing.T) {
	const show = `for name in SAME CHANGED GONE NEW MINE UNSET HARD; do eval "echo $name=\${$name-none}"; done; ` +
		`printenv NEW CHANGED; printenv GONE; true`
	hard := "a'b\"c $x `y` \\n \\\\ \t\n\x01é !"
	from := []string{"SAME=1", "CHANGED=old", "GONE=secret", "MINE=old", "UNSET=old", "HARD=" + hard, "odd.a=old"}
	to := []string{"SAME=1", "CHANGED=it's new", "NEW=new", "MINE=new", "UNSET=new", "HARD=easy", "odd.a=new", "odd.b=2"}
	want := "SAME=1\nCHANGED=it's new\nGONE=none\nNEW=new\nMINE=mine\nUNSET=none\nHARD=easy\nnew\nit's new\n"
	for _, before := range []string{"", "MINE=mine; unset UNSET"} {
		eachShell(t, func(t *testing.T, s *tester) {
			base := slices.Clone(s.state.env)
			from, to := slices.Concat(base, from), slices.Concat(base, to)
			s.state = Open(s.state.shell, s.dir, from)
			want := want
			if before == "" {
				want = "SAME=1\nCHANGED=it's new\nGONE=none\nNEW=new\nMINE=new\nUNSET=new\nHARD=easy\nnew\nit's new\n"
			} else {
				s.expect(before, "", 0)
			}
			other := s.state.Clone()
			other.ReplaceEnvironment(from, to)
			s.expect(`echo "$CHANGED $GONE"`, "old secret\n", 0)
			s.state = other
			s.expect(show, want, 0)
			s.expect(show, want, 0)
			env := s.state.Command("", Call{FDPath: fdPath}).Env // dash passes no such names on
			if !slices.Contains(env, "odd.a=new") || !slices.Contains(env, "odd.b=2") || slices.Contains(env, "odd.a=old") {
				t.Error(env)
			}
		})
	}
}
